# frozen_string_literal: true

require_relative "../test_helper"
require "minitest/mock"

# case 82, SDK-26: blocks are not re-entrant.
class TestOpenBlocks < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @locks = @fixture.locks
  end

  def test_a_block_inside_a_block_on_the_same_key_is_refused_at_once
    @locks.with_lock(KEY, ttl: 30) do |guard|
      [{}, { wait: Float::INFINITY }, { token: guard.lease.token }].each do |options|
        error = assert_raises(LockHeldError) { @locks.with_lock(KEY, ttl: 30, **options) { flunk } }
        assert_match(/held by an outer block of this thread: blocks are not re-entrant/, error.message)
        assert_equal [KEY, guard.fencing_token, guard.lease.expires_at, nil, "lock_held"],
                     [error.key, error.fencing_token, error.expires_at, error.status, error.code]
      end
      assert_raises(LockHeldError) { @locks.lead(KEY, ttl: 30) { flunk } }
      assert_raises(LockHeldError) { @locks.exclusive(KEY, ttl: 30, on_held: :wait) { flunk }.call }
      assert_nil(@locks.exclusive(KEY, ttl: 30, on_held: :skip) { flunk }.call)
      refute guard.lost?
    end
    assert_equal [POST, DELETE], @fixture.sent
  end

  def test_other_keys_other_clients_and_later_blocks_are_not_affected
    @locks.with_lock(KEY, ttl: 30) do
      assert_equal(1, @locks.with_lock("other", ttl: 30) { 1 })
      assert_equal 409, assert_raises(LockHeldError) { @fixture.others.with_lock(KEY, ttl: 30) { flunk } }.status
    end
    assert_raises(BodyError) { @locks.with_lock(KEY, ttl: 30) { raise BodyError } }
    assert_equal(2, @locks.with_lock(KEY, ttl: 30) { 2 })
    assert_equal([3, 3], Array.new(2) { @locks.lead(KEY, ttl: 30) { 3 } })
  end

  def test_another_thread_waits_as_usual
    waiting = nil
    @locks.with_lock(KEY, ttl: 30) do
      waiting = quiet_thread { @locks.with_lock(KEY, ttl: 30, wait: Float::INFINITY) { :granted } }
      eventually { @fixture.server.waiters(KEY) == 1 }
    end
    assert_equal :granted, waiting.value
  end

  # Without a scheduler, a fiber that waits stops its thread, and with it the outer block.
  def test_another_fiber_of_the_thread_is_refused_unless_a_scheduler_runs_it
    inner = -> { Fiber.new { assert_raises(LockHeldError) { @locks.with_lock(KEY, ttl: 30) { flunk } } }.resume }
    @locks.with_lock(KEY, ttl: 30) do
      assert_nil inner.call.status
      Fiber.stub(:current_scheduler, Object.new) do
        assert_equal 409, inner.call.status
        assert_nil assert_raises(LockHeldError) { @locks.with_lock(KEY, ttl: 30) { flunk } }.status, "the same fiber"
      end
    end
  end

  def test_a_block_that_has_lost_the_lock_refuses_nothing
    assert_raises(LockOwnershipLostError) do
      @locks.with_lock(KEY, ttl: 30) do
        @fixture.clock.jump(32)
        assert_equal(1, @locks.with_lock(KEY, ttl: 30) { 1 })
      end
    end
  end
end
