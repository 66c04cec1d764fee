# frozen_string_literal: true

require_relative "../test_helper"

# SDK-11, SDK-2, case 37: an interrupt in any phase of a wait leaves neither a lease nor a queued waiter.
class TestInterruptedWaits < Minitest::Test
  include TestHelper

  class Cut < StandardError; end

  def test_real_time_an_interrupt_in_the_wait_queue
    strikes.each do |strike|
      fixture = Fixture.new
      rival = fixture.others.acquire(KEY, ttl: 30)
      thread = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30, wait: Float::INFINITY) { flunk } }
      eventually { fixture.server.waiters(KEY) == 1 }
      cut(thread, strike)
      assert_equal [POST, DELETE], fixture.sent
      assert_equal 0, fixture.server.waiters(KEY)
      fixture.others.release(KEY, rival)
      refute fixture.held?
    end
  end

  def test_real_time_an_interrupt_during_a_back_off
    strikes.each do |strike|
      fixture = Fixture.new([respond(429, "lock_rate_limited", headers: { "retry-after" => "60" })])
      thread = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
      eventually { fixture.clock.next_due > AcquireWait::WAIT_SLICE_SECONDS + 10 && fixture.clock.next_due < 100 }
      cut(thread, strike)
      assert_equal [POST, DELETE], fixture.sent
    end
  end

  def test_real_time_an_interrupt_during_the_confirmation
    strikes.each do |strike|
      fixture = Fixture.new([Takes.new(20), Hang.new])
      thread = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { fixture.sent == [POST, PATCH] }
      cut(thread, strike)
      assert_equal [POST, PATCH, DELETE], fixture.sent
      refute fixture.held?
    end
  end

  def test_real_time_a_timeout_around_a_wait
    fixture = Fixture.new
    fixture.others.acquire(KEY, ttl: 30)
    assert_raises(Timeout::Error) do
      Timeout.timeout(0.05) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    end
    assert_equal [POST, DELETE], fixture.sent
    assert_equal 0, fixture.server.waiters(KEY)
  end

  # Ruby cannot defer the Interrupt of Ctrl-C.
  def test_real_time_ctrl_c_leaves_the_wait_queue
    program = <<~RUBY
      require "volcano_locks/testing"
      kit = VolcanoLocks::Testing
      server = kit::FakeLocks.new
      network = kit::FaultyTransport.new(server, server.clock)
      client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", clock: server.clock, transport: network)
      server.client.locks.acquire("k", ttl: 30)
      Thread.new do
        sleep 0.001 until server.waiters("k") == 1
        Process.kill("INT", Process.pid)
      end
      begin
        client.locks.with_lock("k", ttl: 30, wait: Float::INFINITY) { puts "body" }
      rescue Interrupt
        puts network.seen.map(&:verb).join(" "), server.waiters("k")
      end
    RUBY
    command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-I", LIBRARY, "-e"]
    assert_equal "POST DELETE\n0\n", IO.popen([*command, program], &:read)
  end

  private

  def strikes
    [->(thread) { thread.raise(Cut) }, lambda(&:kill)]
  end

  def cut(thread, strike)
    strike.call(thread)
    thread.join(PATIENCE_SECONDS) || flunk("the thread does not end")
  rescue Cut
    nil
  end
end
