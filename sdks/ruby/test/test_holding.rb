# frozen_string_literal: true

require_relative "test_helper"

# `with_lock` under a clock that the test moves.
class TestHolding < Minitest::Test
  include TestHelper

  # SDK-3, SDK-5
  def test_a_block_is_renewed_and_released
    fixture = Fixture.new
    result = fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      first = guard.lease
      fixture.clock.advance(300)
      refute guard.lost?
      guard.raise_if_lost!
      assert_equal [first.fencing_token, KEY], [guard.fencing_token, guard.key]
      assert_operator guard.lease.expires_at, :>, first.expires_at
      assert fixture.held?
      :result
    end
    assert_equal :result, result
    refute fixture.held?
    renewals = fixture.sent.count(PATCH)
    assert_includes 27..34, renewals
    assert_equal [POST, DELETE], [fixture.sent.first, fixture.sent.last]
    assert_equal fixture.network.seen.length, fixture.network.seen.map(&:request_id).uniq.length
    assert_equal 1, fixture.network.seen.map(&:token).uniq.length
  end

  # case 18
  def test_the_block_never_runs_without_the_lock
    fixture = Fixture.new
    fixture.others.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    fixture = Fixture.new(otherwise: Reset.new)
    assert_raises(TransportError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    fixture = Fixture.new([Takes.new(11), Takes.new(11)])
    assert_raises(TransportError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    assert_equal [POST, POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # cases 1, 4
  def test_failed_renewals_are_tried_again_while_the_lease_lives
    [Reset.new, DropBeforeSend.new, unavailable, respond(500, "internal"),
     respond(429, "lock_rate_limited", headers: { "retry-after" => "60" }), DropAfterSend.new, Hang.new,
     Respond.new(502, "<html>"), Respond.new(200, "{}")].each do |fault|
      fixture = Fixture.new
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.network.script = [fault, fault]
        fixture.clock.advance(60)
        refute guard.lost?, fault.inspect
      end
      assert_operator fixture.sent.count(PATCH), :>=, 5
    end
  end

  # cases 1, 12: what went wrong in one hold is nothing to the next
  def test_the_next_hold_of_the_key_starts_afresh
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.network.otherwise = Reset.new
        fixture.clock.advance(40)
        assert guard.lost?
        fixture.network.otherwise = Pass.new
      end
    end
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      fixture.clock.advance(100)
      refute guard.lost?
    end
  end

  # case 2
  def test_an_exception_inside_the_renewals_is_a_failed_renewal
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      broken = 3
      sender = fixture.locks.instance_variable_get(:@sender)
      sender.define_singleton_method(:start_request) do |*args, **options, &over|
        raise "a bug" if (broken -= 1) >= 0

        super(*args, **options, &over)
      end
      fixture.clock.advance(60)
      refute guard.lost?
      broken = 1000
      fixture.clock.advance(31)
      assert guard.lost?
      error = assert_raises(LockOwnershipLostError) { guard.raise_if_lost! }
      assert_equal "a bug", error.cause.message
      broken = 0
    end
    flunk
  rescue LockOwnershipLostError
    pass
  end

  # cases 3, 5, 6, SDK-4
  def test_loss_is_told_at_the_deadline_whatever_the_renewals_do
    [Hang.new, Reset.new, unavailable].each do |fault|
      fixture = Fixture.new
      assert_raises(LockOwnershipLostError) do
        fixture.locks.with_lock(KEY, ttl: 5) do |guard|
          fixture.network.otherwise = fault
          fixture.clock.advance(4.999)
          refute guard.lost?
          fixture.clock.advance(0.001)
          assert guard.lost?
          fixture.network.otherwise = Pass.new
        end
      end
    end
  end

  # case 6: one lease's renewal that hangs delays no other's
  def test_a_hanging_renewal_delays_nobody_else
    fixture = Fixture.new
    client = fixture.client
    assert_raises(LockOwnershipLostError) do
      client.locks.with_lock("a", ttl: 30) do |first|
        hang_renewals_of("a", fixture)
        client.locks.with_lock("b", ttl: 5) do |second|
          fixture.clock.advance(29)
          refute first.lost?
          refute second.lost?
          fixture.clock.advance(1)
          assert first.lost?
          refute second.lost?
        end
      end
    end
  end

  # case 5: right even if nobody renews any more
  def test_the_guard_is_right_when_the_renewals_are_dead
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        renewal_thread.each { |thread| thread.kill.join }
        fixture.clock.jump(29.999)
        refute guard.lost?
        fixture.clock.jump(0.001)
        assert guard.lost?
        assert guard.wait_lost
      end
    end
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      fixture.clock.advance(100)
      refute guard.lost?, "the next block starts another thread"
    end
  end

  # case 11: after a suspend, or an outage, of the lease's length
  def test_lost_before_another_line_could_rely_on_it
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.clock.jump(30)
        assert guard.lost?
        fixture.clock.settle
        assert guard.lost?, "no answer brings it back"
      end
    end
    assert_nil error.status
    assert_equal "lock_ownership_lost", error.code
    refute_includes fixture.sent, PATCH
  end

  # case 12, SDK-5
  def test_exactly_one_loss_per_hold
    fixture = Fixture.new
    losses = []
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.network.script = [Reset.new, respond(500, "internal"), unavailable, respond(409, "lock_ownership_lost"),
                                  respond(409, "lock_ownership_lost")]
        fixture.clock.advance(20)
        assert guard.lost?
        fixture.clock.advance(100)
        2.times { losses << assert_raises(LockOwnershipLostError) { guard.raise_if_lost! } }
      end
    end
    assert_equal 1, [error, *losses].uniq(&:object_id).length
    assert_equal 409, error.status
    assert_equal 4, fixture.sent.count(PATCH), "nothing is asked after the loss"
    refute_includes fixture.sent, DELETE, "the server has said that there is nothing to release"
  end

  # SDK-5: somebody forces it out
  def test_a_forced_release_reaches_the_block
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.others.force_release(KEY)
        fixture.clock.advance(12)
        assert guard.lost?
      end
    end
  end

  # case 8
  def test_a_renewal_under_way_when_the_block_is_left_changes_nothing
    fixture = Fixture.new
    guard = nil
    newest = nil
    served = []
    fixture.server.define_singleton_method(:call) do |request|
      served << request.verb
      super(request)
    end
    fixture.locks.with_lock(KEY, ttl: 30) do |one|
      guard = one
      newest = one.lease
      fixture.network.script = [Delay.new(3)]
      fixture.clock.advance(12)
      assert_equal [POST, PATCH], fixture.sent
    end
    fixture.clock.advance(100)
    refute fixture.held?
    assert_same newest, guard.lease
    assert_match(/ended/, assert_raises(LockOwnershipLostError) { guard.raise_if_lost! }.message)
    assert_equal [POST, PATCH, DELETE], fixture.sent
    assert_equal %w[POST DELETE], served - ["GET"], "the renewal was dropped on its way"
  end

  # cases 3, 8, 12: an answer that comes after the end is not believed, whoever brings it
  def test_a_hold_that_has_ended_stays_as_it_was
    lease = Testing::FakeClient.new.locks.acquire(KEY, ttl: 30)
    newer = Lease.new(key: KEY, token: lease.token, ttl_seconds: 30, expires_at: lease.expires_at + 10,
                      fencing_token: lease.fencing_token, deadline: 40.0)
    refusal = LockOwnershipLostError.new("told so", status: 409)
    left = Hold.new(lease, Testing::ManualClock.new, 10.0, 0.5, acquired_at: 0.0)
    left.leave
    left.renewed(newer)
    left.lose(refusal)
    assert_same lease, left.lease
    assert_nil left.loss
    lost = Hold.new(lease, Testing::ManualClock.new, 10.0, 0.5, acquired_at: 0.0)
    lost.lose(refusal)
    lost.renewed(newer)
    lost.lose(LockOwnershipLostError.new("again"))
    assert_same lease, lost.lease
    assert_same refusal, lost.loss
    assert_nil lost.next_step
  end

  # case 17
  def test_whatever_ends_the_body_the_lease_is_released
    [BodyError, Interrupt, SystemExit, NoMemoryError, SignalException.new("TERM"), NotImplementedError].each do |kind|
      fixture = Fixture.new
      assert_raises(*[kind].map { |one| one.is_a?(Class) ? one : one.class }) do
        fixture.locks.with_lock(KEY, ttl: 30) { raise kind }
      end
      refute fixture.held?, kind.to_s
    end
    fixture = Fixture.new
    assert_equal :broke, (fixture.locks.with_lock(KEY, ttl: 30) { break :broke })
    refute fixture.held?
    assert_equal :thrown, (catch(:out) { fixture.locks.with_lock(KEY, ttl: 30) { throw :out, :thrown } })
    refute fixture.held?
  end

  # case 21
  def test_the_bodys_error_wins_and_the_others_are_attached
    fixture = Fixture.new
    body_error = BodyError.new("mine")
    told = without_warnings do
      error = assert_raises(BodyError) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          fixture.network.otherwise = Reset.new
          raise body_error
        end
      end
      assert_same body_error, error
      assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
    end
    assert_equal 1, told.length
  end

  # case 21
  def test_a_loss_is_attached_to_the_bodys_error
    fixture = Fixture.new
    error = assert_raises(BodyError) do
      fixture.locks.with_lock(KEY, ttl: 30) do
        fixture.clock.jump(31)
        raise BodyError
      end
    end
    assert_equal [LockOwnershipLostError], VolcanoLocks.attached_errors(error).map(&:class)
    error = assert_raises(BodyError) do
      fixture.locks.with_lock(KEY, ttl: 30) do
        fixture.clock.jump(31)
        raise BodyError.new.freeze
      end
    end
    assert_empty VolcanoLocks.attached_errors(error)
  end

  def test_a_loss_raised_by_the_body_itself_is_attached_to_nothing
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.clock.jump(31)
        guard.raise_if_lost!
      end
    end
    assert_empty VolcanoLocks.attached_errors(error)
  end

  # SDK-5: work that was protected throughout is not reported as failed
  def test_a_release_that_is_not_confirmed_is_told_quietly
    fixture = Fixture.new
    guard = nil
    told = without_warnings do
      result = fixture.locks.with_lock(KEY, ttl: 30) do |one|
        guard = one
        fixture.network.otherwise = Reset.new
        5
      end
      assert_equal 5, result
    end
    assert_instance_of TransportError, guard.release_error
    assert_match(/release of lock #{KEY}/, told.fetch(0))
    assert_equal [POST, DELETE, DELETE], fixture.sent
  end

  # SDK-5: the release of a lost lease is bounded and quiet
  def test_a_lost_lease_is_released_quickly_and_quietly
    fixture = Fixture.new
    told = without_warnings do
      assert_raises(LockOwnershipLostError) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          fixture.clock.jump(30)
          fixture.network.script = [Takes.new(1)]
        end
      end
    end
    assert_empty told
    assert_equal 1, fixture.sent.count(DELETE)
  end

  def test_a_release_is_bounded
    fixture = Fixture.new
    without_warnings do
      fixture.locks.with_lock(KEY, ttl: 30) { fixture.network.otherwise = Takes.new(5) }
    end
    assert_operator fixture.clock.now, :<=, 10.0
  end

  # case 22
  def test_the_guard_shows_the_newest_lease_and_the_old_one_still_releases
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        old = guard.lease
        fixture.clock.advance(15)
        refute_equal old.expires_at, guard.lease.expires_at
        fixture.locks.release(KEY, old)
        refute fixture.held?
        fixture.clock.advance(15)
        assert guard.lost?
      end
    end
  end

  # SDK-19
  def test_somebody_may_wait_for_the_loss
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      waiting = quiet_thread { guard.wait_lost(timeout: 12) }
      eventually { waiting.stop? }
      fixture.clock.advance(12)
      refute waiting.value
      waiting = quiet_thread { guard.wait_lost }
      eventually { waiting.stop? }
      fixture.network.otherwise = Hang.new
      fixture.clock.advance(30)
      assert waiting.value
      assert guard.wait_lost(timeout: 0)
      fixture.network.otherwise = Pass.new
    end
    flunk
  rescue LockOwnershipLostError
    pass
  end

  def test_waiting_for_a_loss_ends_with_the_block
    fixture = Fixture.new
    waiting = nil
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      waiting = quiet_thread { guard.wait_lost }
      eventually { waiting.stop? }
    end
    assert waiting.value
  end

  # SDK-5, SDK-20: a thread that outlives its block must find out that it may not write any more
  def test_a_guard_that_outlives_its_block_counts_as_lost
    fixture = Fixture.new
    guard = fixture.locks.with_lock(KEY, ttl: 30) { |one| one.tap { refute one.lost? } }
    assert guard.lost?
    assert guard.wait_lost
    error = assert_raises(LockOwnershipLostError) { guard.raise_if_lost! }
    assert_match(/its block has ended/, error.message)
    assert_nil error.status
    fixture.locks.with_lock(KEY, ttl: 30) { assert guard.lost?, "the same key held anew is another hold" }
  end

  # SDK-5
  def test_real_time_closing_waits_for_a_release_under_way
    fixture = Fixture.new
    leaving = Queue.new
    go_on = Queue.new
    fixture.server.define_singleton_method(:call) do |request|
      if request.verb == "DELETE"
        leaving << true
        go_on.pop
      end
      super(request)
    end
    block = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30) { :done } }
    leaving.pop
    closing = quiet_thread { fixture.client.close }
    assert_nil closing.join(0.05)
    go_on << true
    assert closing.join(PATIENCE_SECONDS)
    assert_equal :done, block.value
    refute fixture.held?
  end

  # SDK-1
  def test_a_block_may_have_the_callers_ids
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 30, token: TOKEN, request_id: REQUEST_ID) do |guard|
      assert_equal [TOKEN, REQUEST_ID], [guard.lease.token, fixture.network.seen.last.request_id]
    end
  end

  # SDK-22, case 55
  def test_a_trap_handler_may_ask_the_guard
    fixture = Fixture.new
    told = []
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        before = trap("USR1") { told << [guard.lost?, guard.key, guard.fencing_token, guard.lease] }
        [0, 30].each do |seconds|
          fixture.clock.jump(seconds)
          Process.kill("USR1", Process.pid)
          eventually { told.last&.first == seconds.positive? }
        end
      ensure
        trap("USR1", before)
      end
    end
    assert_equal([[false, KEY], [true, KEY]], told.map { |one| one.first(2) })
  end

  # SDK-4: a renewal whose thread read the clock just before a caller saw the loss
  def test_a_loss_that_was_seen_stays_whatever_is_confirmed_then
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    hold = Hold.new(lease, fixture.clock, 10.0, 0.5, acquired_at: 0.0)
    fixture.clock.jump(30)
    assert hold.lost?
    fixture.clock.define_singleton_method(:now) { 29.9 }
    hold.renewed(lease)
    assert hold.lost?
    assert_instance_of LockOwnershipLostError, hold.loss
  end

  # SDK-7: no timer overflows, and nothing is asked in vain
  def test_ninety_days
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 7_776_000) do |guard|
        fixture.clock.advance(7_775_999)
        refute guard.lost?
        fixture.clock.advance(1)
        assert guard.lost?
      end
    end
    refute_includes fixture.sent, PATCH
  end

  def test_many_locks_of_one_client_share_one_thread
    fixture = Fixture.new
    before = renewal_thread
    holding = Array.new(20) do |number|
      quiet_thread { fixture.locks.with_lock("k#{number}", ttl: 30) { |guard| guard.wait_lost(timeout: 100) } }
    end
    eventually { holding.all?(&:stop?) && fixture.sent.length == 20 }
    assert_equal 1, (renewal_thread - before).length
    fixture.clock.advance(99)
    assert holding.all?(&:alive?)
    fixture.clock.advance(1)
    assert_equal [false] * 20, holding.map(&:value)
  end

  def test_a_closed_client_renews_no_more_and_the_guard_stays_right
    fixture = Fixture.new
    told = without_warnings do
      assert_raises(LockOwnershipLostError) do
        fixture.locks.with_lock(KEY, ttl: 30) do |guard|
          fixture.client.close
          fixture.clock.advance(29)
          refute guard.lost?
          fixture.clock.advance(1)
          assert guard.lost?
        end
      end
    end
    assert_empty told
    assert_equal [POST], fixture.sent
  end

  private

  def renewal_thread
    Thread.list.select { |thread| thread.name == "volcano-locks renewals" && thread.alive? }
  end

  def hang_renewals_of(key, fixture)
    clock = fixture.clock
    fixture.server.define_singleton_method(:call) do |request|
      if request.verb == "PATCH" && request.path.start_with?("/locks/#{key}/")
        signal = VolcanoLocks::Signal.new
        loop { clock.wait(Float::INFINITY, signal) }
      end
      super(request)
    end
  end
end
