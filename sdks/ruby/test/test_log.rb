# frozen_string_literal: true

require_relative "test_helper"
require "logger"
require "minitest/mock"
require "stringio"

# SDK-25: what is logged, and that logging decides nothing.
class TestLog < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @locks = @fixture.locks
  end

  def teardown
    VolcanoLocks.logger = nil
  end

  # SDK-8
  def test_each_operation_is_logged_at_debug_without_token_or_key
    text = logged do
      lease = @locks.acquire(KEY, ttl: 30, token: TOKEN)
      @locks.release(KEY, @locks.renew(KEY, lease))
      @locks.with_lock(KEY, ttl: 30, wait: 5) { @fixture.clock.advance(15) }
    end
    levels, messages = text.lines.map { |line| line.split(" ", 2) }.transpose
    assert_equal ["debug"], levels.uniq
    starts = messages.map { |message| message[/\A\w+/] }
    assert_equal %w[acquired renewed released waits acquired renewed released], starts
    assert_includes messages[0], "fencing_token="
    [TOKEN, "sk-secret"].each { |secret| refute_includes text, secret }
  end

  # Ruby raises the error of a trap handler in whatever runs then. Only in the call of a foreign logger it is taken for
  # an error of the logger.
  def test_an_error_of_a_trap_handler_passes_through
    error = assert_raises(IOError) do
      VolcanoLocks.stub(:logger, -> { raise IOError, "of the handler" }) { @locks.acquire(KEY, ttl: 30) }
    end
    assert_equal "of the handler", error.message
  end

  def test_a_failed_renewal_and_a_loss_are_warnings
    text = logged(Logger::WARN) do
      assert_raises(LockOwnershipLostError) do
        @locks.with_lock(KEY, ttl: 30) do
          @fixture.network.script = [Reset.new, respond(409, "lock_ownership_lost")]
          @fixture.clock.advance(20)
        end
      end
    end
    assert_match(/\Awarn a renewal of the lock nightly failed .*ECONNRESET.*\nwarn lost the lock nightly: .*\n\z/, text)
  end

  # case 81
  def test_a_logger_that_raises_hides_nothing
    [IOError, NotImplementedError, Class.new(StandardError)].each do |kind|
      raising = Class.new do
        define_method(:warn) { |_text| raise kind, "log disk full" }
        define_method(:debug?) { raise kind, "log disk full" }
      end
      VolcanoLocks.logger = raising.new
      fixture = Fixture.new
      assert_equal(:done, fixture.locks.with_lock(KEY, ttl: 30) { fixture.network.otherwise = Reset.new and :done })
      fixture = Fixture.new
      error = assert_raises(BodyError) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          fixture.network.otherwise = Reset.new
          raise BodyError
        end
      end
      assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
      drain
    end
  end

  def test_a_logger_that_blocks_delays_neither_renewals_nor_the_block
    hold = Queue.new
    VolcanoLocks.logger = Object.new.tap { |logger| logger.define_singleton_method(:warn) { |_text| hold.pop } }
    @locks.with_lock(KEY, ttl: 30) do |guard|
      @fixture.network.script = [Reset.new, Reset.new]
      @fixture.clock.advance(100)
      refute guard.lost?
      @fixture.network.otherwise = Reset.new
    end
  ensure
    100.times { hold << true }
    drain
  end

  def test_messages_beyond_a_limit_are_dropped_and_the_rest_comes_in_order
    received = []
    hold = Queue.new
    VolcanoLocks.logger = Object.new.tap do |logger|
      logger.define_singleton_method(:warn) { |text| received << text if hold.pop }
    end
    1_500.times { |number| log.warn(number.to_s) }
    1_500.times { hold << true }
    drain
    assert_includes [1_000, 1_001], received.length
    assert_equal received.map(&:to_i).sort, received.map(&:to_i)
  end

  def test_a_forked_child_logs_too
    reader, writer = IO.pipe
    VolcanoLocks.logger = Object.new.tap { |logger| logger.define_singleton_method(:warn) { |text| writer.puts(text) } }
    log.warn("parent")
    drain
    child = Process.fork do
      log.warn("child")
      drain
      exit!(0)
    end
    Process.wait(child)
    writer.close
    assert_equal "parent\nchild\n", reader.read
  end

  def test_real_time_a_process_ends_with_its_messages_and_despite_a_logger_that_blocks
    ends = { "puts text" => "late\n", "sleep" => "" }
    ends.each do |work, expected|
      program = <<~RUBY
        require "volcano_locks"
        VolcanoLocks.logger = Class.new { def warn(text) = #{work} }.new
        VolcanoLocks.module_eval { const_get(:Log) }.warn("late")
      RUBY
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-I", LIBRARY, "-e", program]
      assert_equal expected, IO.popen(command, &:read)
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 10
    end
  end

  private

  def log
    VolcanoLocks.module_eval { const_get(:Log) }
  end

  def drain
    log.drain(PATIENCE_SECONDS)
  end

  # What the block logs, as lines of level and message.
  def logged(level = Logger::DEBUG)
    text = StringIO.new
    VolcanoLocks.logger = Logger.new(text, level: level,
                                           formatter: ->(name, _at, _program, line) { "#{name.downcase} #{line}\n" })
    yield
    drain
    text.string
  end
end
