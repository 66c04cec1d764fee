# frozen_string_literal: true

# The client's time: seconds on a monotonic clock that goes on counting while the machine sleeps (SDK-4).
#
# A lease runs out on the server whether or not this machine was suspended, so `CLOCK_MONOTONIC` alone, which stands
# still in suspend on Linux, would make a holder believe for too long. `CLOCK_BOOTTIME` does not. Everything that
# waits goes through a clock, so a test moves time and never sleeps.
#
# A clock is any object with these methods:
#
# - `now`: seconds since some fixed instant; never backwards. Called from any thread.
# - `wait(until_, signal)`: return once `now >= until_` or the {Signal} is set. May return early.
# - `pause(seconds)`: rest before the caller's own next attempt.
# - `watch(activity)`: told of each request and each background thread, which have `over?` and `thread`.
#
# Not promised: a pause of the process is noticed when the process next runs, not before.
module VolcanoLocks
  # Something that threads can wait for. Once set it stays set until it is cleared.
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

    # Set it, and wake everybody who waits.
    def set
      @mutex.synchronize do
        @set = true
        @changed.broadcast
      end
    end

    # Take it back.
    def clear
      @mutex.synchronize { @set = false }
    end

    # Let everybody who waits look at the time again.
    def wake
      @mutex.synchronize { @changed.broadcast }
    end

    # Sleep until it is set, or woken, or `seconds` of real time are over, unless the block says that there is nothing
    # to wait for any more. The block is asked where no `wake` can be missed.
    def sleep(seconds)
      @mutex.synchronize { @changed.wait(@mutex, seconds) unless @set || yield }
    end
  end

  # A caller's thread while it is inside something that waits, as a clock sees it.
  class Attendance
    # @return [Thread]
    attr_reader :thread

    def initialize
      @thread = Thread.current
      @over = false
    end

    # @return [Boolean] whether it has come out again
    def over?
      @over
    end

    # Set when it has. An interrupt has no time to come in between: this calls nothing.
    attr_writer :over

    # What the block returns; until then this thread attends.
    def self.during(clock)
      attendance = new
      begin
        clock.watch(attendance)
        yield
      ensure
        attendance.over = true
      end
    end
  end

  # The real clock.
  class SystemClock
    # Timers stand still in suspend; waiting in naps notices the end of a suspend soon enough (SDK-7: and no wait,
    # however far its end, is ever a long one).
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

    # Rest.
    def pause(seconds)
      wait(now + seconds, Signal.new)
    end

    # Real time does not wait for anyone.
    def watch(_activity); end
  end
end
