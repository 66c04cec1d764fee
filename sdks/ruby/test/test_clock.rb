# frozen_string_literal: true

require_relative "test_helper"

class TestSystemClock < Minitest::Test
  include TestHelper

  # SDK-4, SDK-7
  def test_real_time_the_system_clock_waits_and_counts_suspended_time
    clock = SystemClock.new
    before = clock.now
    clock.pause(0.01)
    assert_operator clock.now - before, :>=, 0.01
    signal = Signal.new
    waiting = quiet_thread { clock.wait(Float::INFINITY, signal) }
    eventually { waiting.stop? }
    signal.set
    assert waiting.join(PATIENCE_SECONDS)
    expected = Process.clock_gettime(Process::CLOCK_BOOTTIME)
    assert_in_delta expected, clock.now, 5
  end
end
