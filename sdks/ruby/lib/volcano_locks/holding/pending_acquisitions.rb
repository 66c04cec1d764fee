# frozen_string_literal: true

module VolcanoLocks
  # The acquires and waits in progress, for which closing the client waits: they may have to release a lease. A forked
  # child starts with none.
  class PendingAcquisitions
    def initialize
      reset
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
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      @mutex.synchronize do
        until @all.empty? || (left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)) <= 0
          @ended.wait(@mutex, left)
        end
      end
    end

    private

    def reset
      @pid = Process.pid
      @mutex = Mutex.new
      @ended = ConditionVariable.new
      @all = {}.compare_by_identity
    end

    def reset_after_fork
      reset if @pid != Process.pid
    end
  end
end
