# frozen_string_literal: true

require_relative "../test_helper"

# case 55, SDK-22, SDK-23: what a trap handler may call. Ruby refuses every mutex there.
class TestTrapHandlers < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @locks = @fixture.locks
  end

  def test_a_guard_works_in_a_trap_handler
    losses = []
    error = assert_raises(LockOwnershipLostError) do
      @locks.with_lock(KEY, ttl: 30) do |guard|
        seen = in_trap_handler { [guard.lost?, guard.raise_if_lost!, guard.key, guard.fencing_token, guard.lease] }
        assert_equal [false, nil, KEY, guard.fencing_token, guard.lease], seen
        @fixture.clock.jump(30)
        2.times { losses << in_trap_handler { guard.raise_if_lost! } }
        assert(in_trap_handler { guard.lost? })
      end
    end
    assert_equal [error, error], losses, "one loss per hold (case 12)"
    guard = @locks.with_lock("other", ttl: 30, &:itself)
    assert_match(/its block has ended/, in_trap_handler { guard.raise_if_lost! }.message)
  end

  def test_a_trap_handler_can_release
    lease = @locks.acquire(KEY, ttl: 30)
    assert_nil(in_trap_handler { @locks.release(KEY, lease) })
    refute @fixture.held?
    @fixture.others.acquire(KEY, ttl: 30)
    assert_instance_of(LockOwnershipLostError, in_trap_handler { @locks.release(KEY, lease) })
  end

  def test_a_trap_handler_can_close_the_client
    error = assert_raises(LockOwnershipLostError) do
      @locks.with_lock(KEY, ttl: 30) do |guard|
        assert_nil(in_trap_handler { @fixture.client.close })
        refute guard.lost?
        @fixture.clock.jump(31)
      end
    end
    assert_nil error.status
    assert_equal "this client is closed", assert_raises(VolcanoError) { @locks.get(KEY) }.message
  end

  # SDK-23: the handler runs on top of the code that it interrupts
  def test_real_time_a_handler_that_interrupts_the_holder_of_a_mutex_ends_and_its_release_follows
    lease = @locks.acquire(KEY, ttl: 600)
    threads = @locks.instance_variable_get(:@sender).instance_variable_get(:@threads)
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    threads.instance_variable_get(:@mutex).synchronize do
      assert_nil(in_trap_handler { @locks.release(KEY, lease) })
    end
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 10
    eventually { !@fixture.held? }
  end

  def test_real_time_closing_on_top_of_a_wait_ends_the_wait_and_leaves_the_queue
    @fixture.others.acquire(KEY, ttl: 600)
    program = Thread.current
    interrupter = quiet_thread do
      eventually { @fixture.server.waiters(KEY) == 1 }
      Process.kill("USR1", Process.pid)
    end
    before = trap("USR1") { @fixture.client.close }
    error = assert_raises(VolcanoError) { @locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    assert_equal ["this client is closed", Thread.current], [error.message, program]
    eventually { @fixture.server.waiters(KEY).zero? }
  ensure
    trap("USR1", before)
    interrupter.join
  end

  # SDK-23: a verb that cannot work there raises, and nothing is held
  def test_an_acquire_in_a_trap_handler_raises
    assert_instance_of(ThreadError, in_trap_handler { @locks.acquire(KEY, ttl: 30) })
    assert_instance_of(ThreadError, in_trap_handler { @locks.with_lock(KEY, ttl: 30) { flunk } })
    refute @fixture.held?
  end

  private

  # The block's value, or its error, in a handler of a signal to this process.
  def in_trap_handler
    outcome = []
    before = trap("USR1") do
      outcome << yield
    rescue StandardError => e
      outcome << e
    end
    Process.kill("USR1", Process.pid)
    eventually { !outcome.empty? }
    outcome.first
  ensure
    trap("USR1", before)
  end
end
