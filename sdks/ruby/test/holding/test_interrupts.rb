# frozen_string_literal: true

require_relative "../test_helper"

# case 37, SDK-2, SDK-5: `Timeout.timeout`, `Thread#raise` and `Thread#kill` around and inside the block leak no lock.
class TestInterrupts < Minitest::Test
  include TestHelper

  class Cut < StandardError; end

  def test_real_time_interrupts_at_random_times_leave_no_lock_held
    server = Testing::FakeLocks.new
    client = server.client
    outcomes = Hash.new(0)
    moments = Random.new(37)
    400.times do |number|
      thread = quiet_thread { client.locks.with_lock(KEY, ttl: 30) { |guard| 20.times { guard.lost? } } }
      after = moments.rand * 0.002
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      Thread.pass while Process.clock_gettime(Process::CLOCK_MONOTONIC) - began < after
      strike(thread, number)
      outcomes[end_of(thread)] += 1
      refute client.locks.get(KEY).held?, "leaked at interrupt #{number}"
    end
    assert_operator outcomes[:cut] + outcomes[:killed], :>, 10, outcomes.inspect
  end

  def test_real_time_an_interrupt_while_the_server_hangs_releases_the_lock
    [->(thread) { thread.raise(Cut) }, lambda(&:kill)].each do |strike|
      fixture = Fixture.new([Hang.new])
      thread = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
      eventually { fixture.sent == [POST] && fixture.held? }
      strike.call(thread)
      end_of(thread)
      assert_equal [POST, DELETE], fixture.sent
      assert_equal 1, fixture.network.seen.map(&:token).uniq.length
      refute fixture.held?
    end
  end

  def test_real_time_a_timeout_around_an_acquire_releases_the_lock
    fixture = Fixture.new([Hang.new])
    assert_raises(Timeout::Error) { Timeout.timeout(1) { fixture.locks.acquire(KEY, ttl: 30) } }
    assert_equal [POST, DELETE], fixture.sent
    refute fixture.held?
  end

  def test_real_time_a_timeout_inside_the_block_is_the_bodys_own_error
    fixture = Fixture.new
    assert_raises(Timeout::Error) { fixture.locks.with_lock(KEY, ttl: 30) { Timeout.timeout(0.02) { sleep } } }
    refute fixture.held?
  end

  def test_real_time_a_timeout_around_the_block_releases_the_lock
    fixture = Fixture.new
    assert_raises(Timeout::Error) { Timeout.timeout(1) { fixture.locks.with_lock(KEY, ttl: 30) { sleep } } }
    refute fixture.held?
    assert_equal [POST, DELETE], fixture.sent
  end

  def test_real_time_an_interrupt_during_the_release_waits_for_it
    fixture = Fixture.new
    release_began = Queue.new
    go_on = Queue.new
    fixture.server.define_singleton_method(:call) do |request|
      if request.verb == "DELETE"
        release_began << true
        go_on.pop
      end
      super(request)
    end
    thread = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30) { :done } }
    release_began.pop
    thread.raise(Cut)
    assert_nil thread.join(0.05)
    go_on << true
    assert_equal :cut, end_of(thread)
    refute fixture.held?
  end

  # The client must not deliver an interrupt that the caller defers.
  def test_interrupts_that_the_caller_defers_stay_deferred
    fixture = Fixture.new
    seen = []
    thread = quiet_thread do
      Thread.handle_interrupt(Cut => :never) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          Thread.current.raise(Cut)
          fixture.locks.get(KEY)
          seen << :ran_on
        end
        seen << :left
      end
    end
    assert_equal :cut, end_of(thread)
    assert_equal %i[ran_on left], seen
  end

  def test_real_time_a_loss_raises_nothing_in_a_killed_thread
    fixture = Fixture.new
    raised = false
    entered = Queue.new
    thread = quiet_thread do
      fixture.locks.with_lock(KEY, ttl: 30) do
        entered << true
        sleep
      end
    rescue LockOwnershipLostError
      raised = true
    end
    entered.pop
    fixture.clock.jump(60)
    thread.kill.join(PATIENCE_SECONDS)
    refute raised
  end

  # Ruby cannot defer the Interrupt of Ctrl-C.
  def test_real_time_ctrl_c_during_the_acquire_or_the_body_releases_the_lock
    { "Hang" => "kit::Faults::Hang.new", "body" => "kit::Faults::Pass.new" }.each do |where, fault|
      program = <<~RUBY
        require "volcano_locks/testing"
        kit = VolcanoLocks::Testing
        server = kit::FakeLocks.new
        network = kit::FaultyTransport.new(server, server.clock, script: [#{fault}])
        client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", clock: server.clock, transport: network)
        Thread.new do
          sleep 0.001 until server.client.locks.get("k").held?
          Process.kill("INT", Process.pid)
        end
        begin
          client.locks.with_lock("k", ttl: 30) { sleep }
        rescue Interrupt
          puts network.seen.map(&:verb).join(" "), server.client.locks.get("k").held?
        end
      RUBY
      command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-I", LIBRARY, "-e", program]
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      assert_equal "POST DELETE\nfalse\n", IO.popen(command, &:read), where
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 15, "the process ends at once"
    end
  end

  private

  def strike(thread, number)
    case number % 3
    when 0 then thread.raise(Cut)
    when 1 then 2.times { thread.raise(Cut) }
    else thread.kill
    end
  rescue ThreadError # it has ended
    nil
  end

  def end_of(thread)
    thread.join(PATIENCE_SECONDS) || flunk("the thread does not end")
    thread.status.nil? ? :cut : :killed
  rescue Cut
    :cut
  end
end
