# frozen_string_literal: true

require_relative "../test_helper"

class TestGuard < Minitest::Test
  include TestHelper

  # case 11
  def test_a_guard_is_lost_at_once_after_a_suspend_as_long_as_the_lease
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.clock.jump(30)
        assert guard.lost?
        fixture.clock.settle
        assert guard.lost?, "no response revives the lease"
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
    assert_equal 4, fixture.sent.count(PATCH), "no renewal is sent after the loss"
    refute_includes fixture.sent, DELETE, "the server reported that there is nothing to release"
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
  def test_wait_lost_returns_at_the_timeout_or_at_the_loss
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

  def test_wait_lost_returns_when_the_block_ends
    fixture = Fixture.new
    waiting = nil
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      waiting = quiet_thread { guard.wait_lost }
      eventually { waiting.stop? }
    end
    assert waiting.value
  end

  # SDK-5, SDK-20: a thread that outlives its block must stop writing
  def test_a_guard_that_outlives_its_block_counts_as_lost
    fixture = Fixture.new
    guard = fixture.locks.with_lock(KEY, ttl: 30) { |one| one.tap { refute one.lost? } }
    assert guard.lost?
    assert guard.wait_lost
    error = assert_raises(LockOwnershipLostError) { guard.raise_if_lost! }
    assert_match(/its block has ended/, error.message)
    assert_nil error.status
    fixture.locks.with_lock(KEY, ttl: 30) { assert guard.lost?, "the next hold of the key has its own guard" }
  end

  # SDK-22, case 55
  def test_the_guard_works_in_a_trap_handler
    fixture = Fixture.new
    seen = []
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        before = trap("USR1") { seen << [guard.lost?, guard.key, guard.fencing_token, guard.lease] }
        [0, 30].each do |seconds|
          fixture.clock.jump(seconds)
          Process.kill("USR1", Process.pid)
          eventually { seen.last&.first == seconds.positive? }
        end
      ensure
        trap("USR1", before)
      end
    end
    assert_equal([[false, KEY], [true, KEY]], seen.map { |one| one.first(2) })
  end
end
