# frozen_string_literal: true

module VolcanoLocks
  # The acquires and waits in progress, for which closing the client waits: they may have to release a lease. A forked
  # child starts with none.
  class PendingAcquisitions
    include ForkSafe

    def initialize
      reset_after_fork
    end

    # Record that `acquisition` has begun.
    def add(acquisition)
      reset_after_fork
      @mutex.synchronize { @all[acquisition] = true }
    end

    # Record that `acquisition` has ended. Repeating it is harmless.
    def delete(acquisition)
      reset_after_fork
      @mutex.synchronize do
        @all.delete(acquisition)
        @ended.broadcast
      end
    end

    # Wait until all have ended, or `seconds` of real time have passed.
    def wait(seconds)
      reset_after_fork
      deadline = RealTime.seconds + seconds
      @mutex.synchronize do
        until @all.empty? || (left = deadline - RealTime.seconds) <= 0
          @ended.wait(@mutex, left)
        end
      end
    end

    private

    def reset
      @mutex = Mutex.new
      @ended = ConditionVariable.new
      @all = {}.compare_by_identity
    end
  end
end
