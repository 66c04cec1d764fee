# frozen_string_literal: true

require_relative "test_helper"
require_relative "socket_server"

# case 36, SDK-6: a forked child never counts as holder of its parent's lock.
class TestFork < Minitest::Test
  include TestHelper

  def setup
    @server = SocketServer.new(Testing::FakeLocks.new(Testing::ManualClock.new))
    @client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 600)
  end

  def teardown
    @client.close
    @server.close
  end

  def test_the_childs_guard_is_lost_and_releases_nothing
    seen = nil
    @client.locks.with_lock(KEY, ttl: 30) do |guard|
      seen = in_child do
        error = begin
          guard.raise_if_lost!
        rescue LockOwnershipLostError => e
          e.class
        end
        [guard.lost?, guard.wait_lost(timeout: 10), error]
      end
      refute guard.lost?
      assert @client.locks.get(KEY).held?
    end
    assert_equal [true, true, LockOwnershipLostError], seen
    assert_equal 1, @server.requests.count(["DELETE", "/locks/#{KEY}/lease"])
  end

  def test_a_child_that_leaves_the_block_gets_the_loss_and_sends_nothing
    reader, writer = IO.pipe
    child = nil
    begin
      @client.locks.with_lock(KEY, ttl: 30) { child = Process.fork }
      raise "no loss was raised" if child.nil?
    rescue LockOwnershipLostError => e
      writer.write(e.message)
      exit!(0)
    end
    writer.close
    Process.wait(child)
    assert_match(/process/, reader.read)
    assert_equal(%w[DELETE POST], @server.requests.map(&:first).sort)
  end

  # SDK-11: a closing child neither waits for its parent's waits nor releases them.
  def test_a_child_does_not_touch_its_parents_waits
    lease = Client.new(api_url: @server.url, service_key: "sk-x").locks.acquire(KEY, ttl: 600)
    waiting = quiet_thread { @client.locks.acquire(KEY, ttl: 30, wait: 500) }
    eventually { @client.locks.view(KEY).waiters == 1 }
    seconds = in_child do
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      @client.close
      Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
    end
    assert_operator seconds, :<, 3
    assert_equal 1, @client.locks.view(KEY).waiters
    @client.locks.release(KEY, lease)
    assert waiting.value
    assert_equal 1, @server.requests.count(["DELETE", "/locks/#{KEY}/lease"])
  end

  def test_a_child_uses_connections_of_its_own
    @client.locks.get(KEY)
    parents = @server.connections
    ours = in_child { 3.times.map { @client.locks.get(KEY).held? } }
    assert_equal [false] * 3, ours
    assert_equal parents + 1, @server.connections
    @client.locks.get(KEY)
    assert_equal parents + 1, @server.connections, "the parent's connection still works"
  end

  def test_a_child_can_hold_locks_of_its_own
    @client.locks.with_lock(KEY, ttl: 30) do
      fencing_token = in_child { @client.locks.with_lock("other", ttl: 30, &:fencing_token) }
      assert_kind_of Integer, fencing_token
    end
    pid_of = ->(label) { label.split("/").last.to_i }
    assert_equal 2, @server.holders.uniq.map(&pid_of).length, "each process uses its own id"
  end

  private

  # Run the block in a child, without the test suite's exit handlers, and return its value.
  def in_child
    reader, writer = IO.pipe
    child = Process.fork do
      writer.write(Marshal.dump(yield))
    rescue Exception => e # rubocop:disable Lint/RescueException
      writer.write(Marshal.dump("#{e.class}: #{e.message}"))
    ensure
      writer.close
      exit!(0)
    end
    writer.close
    given = reader.read
    Process.wait(child)
    Marshal.load(given) # rubocop:disable Security/MarshalLoad
  end
end
