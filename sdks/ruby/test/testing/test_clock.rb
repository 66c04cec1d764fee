# frozen_string_literal: true

require_relative "../test_helper"

class TestManualClock < Minitest::Test
  include TestHelper

  # SDK-10: a request that ends during the check has just woken its caller.
  def test_a_thread_that_was_just_woken_does_not_count_as_waiting
    clock = Testing::ManualClock.new
    answered = Signal.new
    request = Object.new
    request.define_singleton_method(:over?) { answered.set || true }
    request.define_singleton_method(:thread) { nil }
    answered.define_singleton_method(:sleep) { |_seconds| Thread.stop } # it has not run yet
    caller = quiet_thread { CallerActivity.during(clock) { clock.wait(10.0, answered) } }
    eventually { clock.next_due.finite? }
    clock.watch(request)
    refute clock.send(:settled?)
  ensure
    caller&.kill
  end

  def test_the_clock_only_moves_forward_and_reports_each_step
    moves = []
    clock = Testing::ManualClock.new(5) { |seconds| moves << seconds }
    clock.jump(1.5)
    clock.advance(2)
    clock.pause(1)
    assert_equal [9.5, [1.5, 2.0, 1]], [clock.now, moves]
    assert_equal Testing::ManualClock::START + 4.5, clock.utc_now
    assert_raises(ArgumentError) { clock.jump(-1) }
  end
end
