# frozen_string_literal: true

require_relative "../test_helper"

# SDK-6: background threads raise no errors and keep no process alive.
class TestBackgroundThreads < Minitest::Test
  include TestHelper

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

  def test_abort_on_exception_sees_no_exception_of_a_background_thread
    out, = run_program(<<~RUBY)
      Thread.abort_on_exception = true
      VolcanoLocks.logger = nil
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

  def test_the_renewal_thread_ends_when_idle_and_starts_again
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

  # A block in a fiber that is never resumed does not end.
  def test_the_renewals_of_an_abandoned_block_end
    fixture = Fixture.new
    abandon_a_block(fixture)
    eventually do
      GC.start
      fixture.clock.advance(10)
      !fixture.held?
    end
    refute_includes fixture.sent, DELETE
  end

  # case 2
  def test_a_clock_that_raises_in_the_renewal_thread_loses_no_lease
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

  def abandon_a_block(fixture)
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
