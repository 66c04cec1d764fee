# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # A clock that stands still until the test moves it.
    #
    # `advance` stops at every instant that a thread waits for, and continues when the work due there has finished or
    # waits again. So ten minutes pass at once, in the right order. `jump` moves without stopping, like a suspended
    # machine. A request to a real server still takes real time.
    #
    # A caller's own pause between two attempts moves the clock, because the caller cannot move it meanwhile.
    class ManualClock
      SETTLE_SECONDS_MAX = 20.0
      POLL_SECONDS = 0.0005
      START = Time.utc(2026, 1, 1).freeze

      # A thread waiting on the clock.
      WaitingThread = Struct.new(:thread, :until, :signal)
      private_constant :WaitingThread

      # The block receives each step in seconds before any thread wakes: use it to move a server's clock as well.
      # Responses that the server then sends arrive at the new time.
      def initialize(start_seconds = 0.0, &on_move)
        @seconds = start_seconds.to_f
        @start_seconds = @seconds
        @on_move = on_move
        @mutex = Mutex.new
        @waiting = []
        @watched = []
      end

      # @return [Float] seconds
      def now
        @seconds
      end

      # @return [Time] this clock's date: 2026-01-01 plus the time it was moved by, in whole milliseconds
      def utc_now
        START + Rational(((@seconds - @start_seconds) * 1000).round, 1000)
      end

      # Move at once and wake the threads that are due, without waiting for them.
      def jump(seconds)
        raise ArgumentError, "seconds must be at least 0, got #{seconds}" if seconds.negative?

        move_to(@seconds + seconds)
      end

      # Move step by step, and settle after each.
      def advance(seconds)
        target = @seconds + seconds
        settle
        while @seconds < target
          move_to([next_due, target].min)
          settle
        end
      end

      # @return [Float] the next instant that a thread waits for; infinite if there is none
      def next_due
        @mutex.synchronize do
          requests = @watched.select { |activity| activity.respond_to?(:deadline) && !activity.over? }
          (@waiting.map(&:until) + requests.map(&:deadline)).select { |instant| instant > @seconds }.min ||
            Float::INFINITY
        end
      end

      # Return once every request and background thread has ended or waits on this clock.
      #
      # @raise [RuntimeError] if that takes more than `SETTLE_SECONDS_MAX` of real time
      def settle
        give_up = RealTime.seconds + SETTLE_SECONDS_MAX
        until settled?
          if RealTime.seconds > give_up
            raise "background work does not end or wait on the clock: #{@watched.map(&:thread).inspect}"
          end

          sleep(POLL_SECONDS)
        end
      end

      # See the clock's contract in {SystemClock}.
      def wait(until_, signal)
        waiting = WaitingThread.new(Thread.current, until_, signal)
        @mutex.synchronize { @waiting << waiting }
        begin
          signal.sleep(nil) { @seconds >= until_ } until signal.set? || @seconds >= until_
        ensure
          @mutex.synchronize { @waiting.delete_if { |other| other.equal?(waiting) } }
        end
      end

      # Moves the clock by `seconds`.
      def pause(seconds)
        jump(seconds)
      end

      # Make `settle` wait for this activity.
      def watch(activity)
        @mutex.synchronize do
          @watched.reject!(&:over?)
          @watched << activity
        end
      end

      private

      # Takes an instant, because adding a difference back may not give the same number.
      def move_to(instant)
        step = instant - @seconds
        @seconds = instant
        @on_move&.call(step)
        due, watched = @mutex.synchronize { [@waiting.select { |thread| thread.until <= instant }, @watched.dup] }
        due.each { |thread| thread.signal.wake }
        watched.each { |activity| activity.clock_moved if activity.respond_to?(:clock_moved) }
      end

      def settled?
        busy.empty?
      end

      # The activities, one per thread, that are neither over nor waiting on the clock. They are read before the waiting
      # threads, so that a thread just woken by work that has ended does not count as waiting.
      def busy
        @mutex.synchronize do
          active = @watched.reject(&:over?)
          waiting = @waiting.select { |thread| thread.until > @seconds && !thread.signal.set? }.map(&:thread)
          active.reject { |activity| waiting.include?(activity.thread) }.uniq { |activity| activity.thread || activity }
        end
      end
    end
  end
end
