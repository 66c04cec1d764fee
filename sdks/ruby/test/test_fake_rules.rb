# frozen_string_literal: true

require_relative "test_helper"

# SDK-10: the fake keeps the LEASE rules under a clock that the test moves.
class TestFakeRules < Minitest::Test
  include TestHelper

  def setup
    @client = Testing::FakeClient.new
    @clock = @client.clock
    @locks = @client.locks
  end

  # SDK-10: a request that ends while the clock looks has woken whoever waits for it.
  def test_nothing_is_at_rest_that_was_just_woken
    answered = Signal.new
    request = Object.new
    request.define_singleton_method(:over?) { answered.set || true }
    request.define_singleton_method(:thread) { nil }
    answered.define_singleton_method(:sleep) { |_seconds| Thread.stop } # it has yet to notice
    caller = quiet_thread { CallerActivity.during(@clock) { @clock.wait(10.0, answered) } }
    eventually { @clock.next_due.finite? }
    @clock.watch(request)
    refute @clock.send(:settled?)
  ensure
    caller&.kill
  end

  # LEASE-4, LEASE-5
  def test_a_repeat_is_the_same_lease_until_the_margin
    first = @locks.acquire(KEY, ttl: 30, token: TOKEN)
    @clock.jump(28.999)
    again = @locks.acquire(KEY, ttl: 30, token: TOKEN)
    assert_equal [first.fencing_token, first.expires_at + 28.999r], [again.fencing_token, again.expires_at]
    @clock.jump(29)
    assert_raises(LockOwnershipLostError) { @locks.acquire(KEY, ttl: 30, token: TOKEN) }
  end

  # LEASE-6, LEASE-7, LEASE-12
  def test_others_wait_for_the_end_of_the_grace
    first = @locks.acquire(KEY, ttl: 30, token: TOKEN)
    @clock.jump(30.999)
    assert_raises(LockHeldError) { @locks.acquire(KEY, ttl: 30) }
    assert_predicate @locks.get(KEY), :held?
    @clock.jump(0.001)
    refute_predicate @locks.get(KEY), :held?
    assert_operator @locks.acquire(KEY, ttl: 30, token: TOKEN).fencing_token, :>, first.fencing_token
  end

  # LEASE-8
  def test_renewals_set_the_expiry_in_time_only
    lease = @locks.acquire(KEY, ttl: 30)
    assert_equal Testing::ManualClock::START + 10, @locks.renew(KEY, lease, ttl: 10).expires_at
    @clock.jump(9)
    assert_raises(LockOwnershipLostError) { @locks.renew(KEY, lease) }
    of_no_lock = Testing::FakeClient.new.locks.acquire("free", ttl: 30)
    assert_raises(LockOwnershipLostError) { @locks.renew("free", of_no_lock) }
  end

  # LEASE-9, LEASE-10, LEASE-11
  def test_releases
    lease = @locks.acquire(KEY, ttl: 30)
    2.times { @locks.release(KEY, lease) }
    assert_raises(LockOwnershipLostError) { @locks.acquire(KEY, ttl: 30, token: lease.token) }
    other = @locks.acquire(KEY, ttl: 30)
    assert_operator other.fencing_token, :>, lease.fencing_token
    assert_raises(LockOwnershipLostError) { @locks.release(KEY, lease) }
    2.times { @locks.force_release(KEY) }
    assert_raises(LockOwnershipLostError) { @locks.acquire(KEY, ttl: 30, token: other.token) }
  end

  # LEASE-11: forced out after it lapsed, too
  def test_a_lapsed_owner_that_is_forced_out_is_retired
    lease = @locks.acquire(KEY, ttl: 30)
    @clock.jump(31)
    @locks.force_release(KEY)
    assert_raises(LockOwnershipLostError) { @locks.acquire(KEY, ttl: 30, token: lease.token) }
  end

  # LEASE-2
  def test_the_deadline_of_an_acquisition_is_ninety_days
    lease = @locks.acquire(KEY, ttl: 7_776_000)
    @clock.jump(100)
    assert_equal lease.expires_at, @locks.renew(KEY, lease).expires_at
  end

  # LEASE-3
  def test_fencing_tokens_are_the_clocks_milliseconds_and_rise
    first = @locks.acquire(KEY, ttl: 30)
    assert_equal (@clock.utc_now.to_r * 1000).to_i, first.fencing_token
    @locks.release(KEY, first)
    assert_equal first.fencing_token + 1, @locks.acquire(KEY, ttl: 30).fencing_token
  end

  def test_clients_of_one_server_contend_and_locks_are_apart
    server = Testing::FakeLocks.new(@clock)
    Testing::FakeClient.new(server: server).locks.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { server.client(holder: "other").locks.acquire(KEY, ttl: 30) }
    server.client.locks.acquire("another", ttl: 30)
  end

  def test_the_clock_moves_forward_only_and_tells_who_follows
    moves = []
    clock = Testing::ManualClock.new(5) { |seconds| moves << seconds }
    clock.jump(1.5)
    clock.advance(2)
    clock.pause(1)
    assert_equal [9.5, [1.5, 2.0, 1]], [clock.now, moves]
    assert_equal Testing::ManualClock::START + 4.5, clock.utc_now
    assert_raises(ArgumentError) { clock.jump(-1) }
  end

  # SDK-4, SDK-7
  def test_real_time_the_system_clock
    clock = SystemClock.new
    before = clock.now
    clock.pause(0.01)
    assert_operator clock.now - before, :>=, 0.01
    signal = Signal.new
    waiting = quiet_thread { clock.wait(Float::INFINITY, signal) }
    eventually { waiting.stop? }
    signal.set
    assert waiting.join(PATIENCE_SECONDS)
    expected = Process.clock_gettime(Process::CLOCK_BOOTTIME)
    assert_in_delta expected, clock.now, 5
  end
end
