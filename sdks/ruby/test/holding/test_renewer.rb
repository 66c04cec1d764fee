# frozen_string_literal: true

require_relative "../test_helper"

class TestRenewer < Minitest::Test
  include TestHelper

  # cases 1, 12
  def test_failures_of_one_hold_do_not_affect_the_next
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
  def test_an_exception_in_a_renewal_is_a_failed_renewal
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

  # case 5
  def test_the_guard_is_right_when_the_renewal_thread_is_dead
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

  def test_the_locks_of_one_client_share_one_renewal_thread
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

  def test_a_closed_client_stops_renewing_and_the_guard_stays_right
    fixture = Fixture.new
    warnings = collect_warnings do
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
    assert_equal 1, warnings.length, "only the loss"
    assert_equal [POST], fixture.sent
  end

  private

  def renewal_thread
    Thread.list.select { |thread| thread.name == "volcano-locks renewals" && thread.alive? }
  end
end
