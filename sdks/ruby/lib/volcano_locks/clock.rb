# frozen_string_literal: true

# The client's time: seconds on a monotonic clock that keeps counting while the machine is suspended (SDK-4).
#
# A lease expires on the server even if this machine is suspended. `CLOCK_MONOTONIC` stops during a suspend on Linux,
# so a holder would trust its lease for too long; `CLOCK_BOOTTIME` keeps counting. Every wait goes through a clock, so
# that tests move time and never sleep.
#
# A clock is any object with these methods:
#
# - `now`: seconds since a fixed instant; never decreases. Called from any thread.
# - `wait(until_, signal)`: return once `now >= until_` or the {Signal} is set. May return early.
# - `pause(seconds)`: sleep before the caller's next attempt.
# - `watch(activity)`: receives each request and each background thread, which have `over?` and `thread`. A request also
#   has `deadline` and `clock_moved`. A clock that does not follow real time calls `clock_moved` after each move.
#
# Limit: a process that is paused notices this only when it runs again.
module VolcanoLocks
  # Seconds of real time, for limits that hold under every clock.
  module RealTime
    # @return [Float]
    def self.seconds
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end

  # A flag that threads can wait for. It stays set until it is cleared.
  class Signal
    def initialize
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @set = false
    end

    # @return [Boolean] whether it is set
    def set?
      @set
    end

    # Set it, and wake all waiting threads.
    def set
      @mutex.synchronize do
        @set = true
        @changed.broadcast
      end
    end

    # Unset it.
    def clear
      @mutex.synchronize { @set = false }
    end

    # Wake all waiting threads so that they check the time again.
    def wake
      @mutex.synchronize { @changed.broadcast }
    end

    # Sleep until it is set or woken, or `seconds` of real time have passed. Returns at once if the block returns true.
    # The block runs under the mutex, so that no `wake` is missed.
    def sleep(seconds)
      @mutex.synchronize { @changed.wait(@mutex, seconds) unless @set || yield }
    end
  end

  # Reports to the clock that a caller's thread is inside a waiting operation.
  class CallerActivity
    # @return [Thread]
    attr_reader :thread

    def initialize
      @thread = Thread.current
      @over = false
    end

    # @return [Boolean] whether the operation has ended
    def over?
      @over
    end

    # Set when the operation ends. A plain writer calls nothing, so no interrupt can arrive inside it.
    attr_writer :over

    # Run the block; the activity lasts until it returns.
    def self.during(clock)
      activity = new
      begin
        clock.watch(activity)
        yield
      ensure
        activity.over = true
      end
    end
  end

  # The real clock.
  class SystemClock
    # Timers stop during a suspend. Short naps notice its end soon enough, and keep every timer short (SDK-7).
    NAP_SECONDS_MAX = 2.0

    SOURCE = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
    private_constant :SOURCE

    # @return [Float] seconds
    def now
      Process.clock_gettime(SOURCE)
    end

    # Return once `now >= until_` or `signal` is set.
    def wait(until_, signal)
      until signal.set? || (left = until_ - now) <= 0
        signal.sleep([left, NAP_SECONDS_MAX].min) { false }
      end
    end

    # Sleep for `seconds`.
    def pause(seconds)
      wait(now + seconds, Signal.new)
    end

    # Does nothing: real time passes by itself.
    def watch(_activity); end
  end
end
