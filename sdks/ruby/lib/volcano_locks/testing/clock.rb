# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # A clock that stands still until the test moves it.
    #
    # `advance` stops at every instant somebody waits for and lets the renewals due there run to their next rest before
    # it moves on, so that ten minutes pass as they would, at once. `jump` moves without stopping, like a suspended
    # machine. Both have no effect on time inside a request to a real server, which takes what it takes.
    #
    # A caller's own pause between two attempts moves the clock by itself: the caller is the one who would move it.
    class ManualClock
      SETTLE_SECONDS_MAX = 20.0
      POLL_SECONDS = 0.0005
      START = Time.utc(2026, 1, 1).freeze

      # A thread waiting on the clock.
      Rest = Struct.new(:thread, :until, :signal)
      private_constant :Rest

      # The block is told each step in seconds before anybody wakes: move a server's clock in step there. What the
      # server answers thereupon is heard at the new time.
      def initialize(start_seconds = 0.0, &on_move)
        @seconds = start_seconds.to_f
        @start_seconds = @seconds
        @on_move = on_move
        @mutex = Mutex.new
        @rests = []
        @watched = []
      end

      # @return [Float] seconds
      def now
        @seconds
      end

      # @return [Time] the date this clock shows: 2026-01-01 plus what it was moved, in whole milliseconds
      def utc_now
        START + Rational(((@seconds - @start_seconds) * 1000).round, 1000)
      end

      # Move at once and wake whoever is due, waiting for nobody.
      def jump(seconds)
        raise ArgumentError, "seconds must not be negative, got #{seconds}" if seconds.negative?

        move_to(@seconds + seconds)
      end

      # Move step by step, settling at each.
      def advance(seconds)
        target = @seconds + seconds
        settle
        while @seconds < target
          move_to([next_due, target].min)
          settle
        end
      end

      # @return [Float] the next instant somebody waits for; infinite if nobody does
      def next_due
        @mutex.synchronize do
          @rests.map(&:until).select { |instant| instant > @seconds }.min || Float::INFINITY
        end
      end

      # Return once every request and every background thread is over or rests on this clock.
      #
      # @raise [RuntimeError] if some does not within real seconds
      def settle
        give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + SETTLE_SECONDS_MAX
        until settled?
          if Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up
            raise "background work does not come to rest: #{@watched.map(&:thread).inspect}"
          end

          sleep(POLL_SECONDS)
        end
      end

      # See the clock's contract in {SystemClock}.
      def wait(until_, signal)
        rest = Rest.new(Thread.current, until_, signal)
        @mutex.synchronize { @rests << rest }
        begin
          signal.sleep(nil) { @seconds >= until_ } until signal.set? || @seconds >= until_
        ensure
          @mutex.synchronize { @rests.delete_if { |other| other.equal?(rest) } }
        end
      end

      # Moves the clock by `seconds` itself.
      def pause(seconds)
        jump(seconds)
      end

      # From now on `settle` waits for this piece of work.
      def watch(activity)
        @mutex.synchronize do
          @watched.reject!(&:over?)
          @watched << activity
        end
      end

      private

      # Exactly there: a difference added back need not give the instant it was taken from.
      def move_to(instant)
        step = instant - @seconds
        @seconds = instant
        @on_move&.call(step)
        due = @mutex.synchronize { @rests.select { |rest| rest.until <= instant } }
        due.each { |rest| rest.signal.wake }
      end

      # In this order: whoever was woken by what is over by now is then no longer seen resting.
      def settled?
        @mutex.synchronize do
          active = @watched.reject(&:over?)
          resting = @rests.select { |rest| rest.until > @seconds && !rest.signal.set? }.map(&:thread)
          active.all? { |activity| resting.include?(activity.thread) }
        end
      end
    end
  end
end
