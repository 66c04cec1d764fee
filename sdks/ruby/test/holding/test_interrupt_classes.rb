# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../socket_server"

# SDK-23, case 37: an exception that the program raises into the thread comes out as itself, whatever its class.
class TestInterruptClasses < Minitest::Test
  include TestHelper

  # Classes that already have a meaning: sockets raise them, `loop` rescues them, or the client defines them.
  CLASSES = [IOError, EOFError, Errno::ECONNRESET, Errno::EPIPE, Errno::ETIMEDOUT, OpenSSL::SSL::SSLError,
             Net::ReadTimeout, StopIteration, ThreadError, TransportError, LockOwnershipLostError, UnavailableError,
             RateLimitedError].freeze

  def setup
    @server = SocketServer.new(@fake = Testing::FakeLocks.new)
    @client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 5)
  end

  def teardown
    @client.close
    @server.close
  end

  { acquire: ->(locks) { locks.acquire(KEY, ttl: 30) },
    get: ->(locks) { locks.get(KEY) },
    with_lock: ->(locks) { locks.with_lock(KEY, ttl: 30) { 1 } } }.each do |name, verb|
    define_method("test_real_time_#{name}_over_an_open_connection") do
      CLASSES.each do |error_class|
        @client.locks.get("other")
        assert_comes_out(error_class, verb) { @server.script << hang }
        eventually { !@fake.client.locks.get(KEY).held? }
      end
    end

    define_method("test_real_time_#{name}_over_a_new_connection") do
      CLASSES.each do |error_class|
        @server.close_connections
        assert_comes_out(error_class, verb) { @server.script << hang }
      end
    end
  end

  def test_real_time_a_wait
    @fake.client.locks.acquire(KEY, ttl: 30)
    CLASSES.each do |error_class|
      assert_comes_out(error_class, ->(locks) { locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }) do
        @arrived = -> { @fake.waiters(KEY) == 1 }
      end
    end
    eventually { @fake.waiters(KEY).zero? }
  end

  def test_real_time_a_watch
    CLASSES.each do |error_class|
      changes = Queue.new
      assert_comes_out(error_class, ->(locks) { locks.watch(KEY) { |change| changes << change } }) do
        @arrived = -> { changes.length == 1 }
      end
    end
  end

  # The program raises the loss of one lock into a thread that waits for another lock.
  def test_real_time_the_loss_of_another_lock
    @fake.client.locks.acquire("second", ttl: 600)
    loss = nil
    verb = lambda do |locks|
      locks.with_lock("first", ttl: 30) do |guard|
        @fake.client.locks.force_release("first")
        loss = assert_raises(LockOwnershipLostError) { locks.renew("first", guard.lease) }
        locks.acquire("second", ttl: 30, wait: Float::INFINITY)
      end
    end
    thread = quiet_thread { verb.call(@client.locks) }
    eventually { @fake.waiters("second") == 1 }
    thread.raise(loss)
    assert_same loss, assert_raises(LockOwnershipLostError) { thread.join(PATIENCE_SECONDS) || flunk("it hangs") }
  end

  # Ruby cannot defer what a trap handler raises, so it may arrive in a call of the socket. Not tested: such an
  # error between the end of a block and its release leaves the lock held until its lease expires.
  def test_real_time_an_error_of_a_trap_handler_comes_out_as_itself
    program = <<~RUBY
      require "volcano_locks/testing"
      require "#{File.expand_path('../socket_server', __dir__)}"
      server = SocketServer.new(VolcanoLocks::Testing::FakeLocks.new)
      locks = VolcanoLocks::Client.new(api_url: server.url, service_key: "sk-x").locks
      trap("USR1") { raise IOError, "of the handler" if $armed }
      came_out = 0
      random = Random.new(23)
      100.times do |round|
        number = 0
        striker = nil
        begin
          $armed = true
          striker = Thread.new { sleep(random.rand * 0.002) && Process.kill("USR1", Process.pid) }
          locks.with_lock("k\#{round}.\#{number += 1}", ttl: 30) { 1 } while true
        rescue IOError => e
          $armed = false
          came_out += 1 if e.message == "of the handler"
        end
        striker&.join
      end
      puts came_out
    RUBY
    command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, "timeout", (3 * PATIENCE_SECONDS).to_s, RbConfig.ruby, "-W0"]
    assert_equal "100\n", IO.popen([*command, "-I", LIBRARY, "-e", program], &:read)
  end

  private

  def hang
    began = Queue.new
    @arrived = -> { !began.empty? }
    lambda do |connection|
      began << true
      connection.wait_readable
      false
    end
  end

  def assert_comes_out(error_class, verb)
    yield
    thread = quiet_thread { verb.call(@client.locks) }
    eventually(&@arrived)
    error = error_class == Net::ReadTimeout ? error_class.new : error_class.new("raised by the program")
    thread.raise(error)
    raised = begin
      thread.join(PATIENCE_SECONDS)
    rescue StandardError => e
      e
    end
    assert_same error, raised, "#{error_class} came out as #{raised.inspect}"
  end
end
