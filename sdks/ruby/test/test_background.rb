# frozen_string_literal: true

require_relative "test_helper"

# SDK-6: what runs in the background crashes nothing and keeps nothing alive.
class TestBackground < Minitest::Test
  include TestHelper

  LIBRARY = File.expand_path("../lib", __dir__)

  def test_a_process_ends_while_threads_hold_locks
    out, seconds = run_program(<<~RUBY)
      locks = VolcanoLocks::Testing::FakeClient.new.locks
      3.times { |n| Thread.new { locks.with_lock("k\#{n}", ttl: 30) { sleep } } }
      Thread.new { Thread.handle_interrupt(Object => :never) { locks.with_lock("m", ttl: 30) { |g| g.wait_lost(timeout: 0) } } }.join
      sleep 0.05
      puts "end"
    RUBY
    assert_equal "end\n", out
    assert_operator seconds, :<, 15
  end

  def test_a_process_ends_while_requests_hang
    out, seconds = run_program(<<~RUBY)
      hang = ->(_request) { sleep }
      locks = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", transport: hang).locks
      2.times { Thread.new { Thread.current.report_on_exception = false; locks.get("k") } }
      sleep 0.05
      puts "end"
    RUBY
    assert_equal "end\n", out
    assert_operator seconds, :<, 15
  end

  def test_exit_inside_a_block_releases
    out, = run_program(<<~RUBY)
      client = VolcanoLocks::Testing::FakeClient.new
      at_exit { puts client.locks.get("k").held? }
      client.locks.with_lock("k", ttl: 30) { exit }
    RUBY
    assert_equal "false\n", out
  end

  def test_nothing_is_said_when_threads_are_told_to_abort_on_exceptions
    out, = run_program(<<~RUBY)
      Thread.abort_on_exception = true
      kit = VolcanoLocks::Testing
      clock = kit::ManualClock.new
      server = kit::FakeLocks.new(clock)
      network = kit::FaultyTransport.new(server, clock)
      client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", clock: clock, transport: network)
      begin
        client.locks.with_lock("k", ttl: 30) do
          network.otherwise = kit::Faults::Reset.new
          clock.advance(60)
        end
      rescue VolcanoLocks::LockOwnershipLostError
        puts "lost"
      end
    RUBY
    assert_equal "lost\n", out
  end

  def test_the_threads_end_when_there_is_nothing_to_do
    fixture = Fixture.new
    before = Thread.list
    fixture.locks.with_lock("idle", ttl: 30) { nil }
    renewer = (Thread.list - before).find { |thread| thread.name == "volcano-locks renewals" }
    refute_nil renewer
    fixture.clock.advance(100)
    assert renewer.join(PATIENCE_SECONDS)
    fixture.locks.with_lock("idle", ttl: 30) do |guard|
      fixture.clock.advance(100)
      refute guard.lost?
    end
  end

  # A block in a fiber that nobody resumes is never left.
  def test_a_forgotten_block_is_not_renewed_for_ever
    fixture = Fixture.new
    forget_a_block(fixture)
    eventually do
      GC.start
      fixture.clock.advance(10)
      !fixture.held?
    end
    refute_includes fixture.sent, DELETE
  end

  # case 2: even a clock that fails
  def test_a_clock_that_fails_in_the_background_fails_nobody
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 30) do |guard|
      fails = 2
      fixture.clock.define_singleton_method(:wait) do |*args|
        raise "a bug" if Thread.current.name == "volcano-locks renewals" && (fails -= 1) >= 0

        super(*args)
      end
      fixture.clock.jump(10.9)
      eventually { fails.negative? }
      fixture.clock.settle
      fixture.clock.advance(60)
      refute guard.lost?
    end
  end

  private

  def forget_a_block(fixture)
    Fiber.new { fixture.locks.with_lock(KEY, ttl: 30) { Fiber.yield } }.resume
  end

  def run_program(code)
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    environment = { "RUBYOPT" => nil, "RUBYLIB" => nil }
    program = "require 'volcano_locks/testing'\n#{code}"
    out = IO.popen([environment, RbConfig.ruby, "-W", "-I", LIBRARY, "-e", program, { err: %i[child out] }], &:read)
    assert_predicate $CHILD_STATUS || Process.last_status, :success?, out
    [out, Process.clock_gettime(Process::CLOCK_MONOTONIC) - began]
  end
end
