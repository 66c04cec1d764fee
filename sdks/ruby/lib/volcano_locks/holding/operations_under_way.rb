# frozen_string_literal: true

module VolcanoLocks
  # What a client that is closed does not cut off half done: acquires and waits, which may have something to give back.
  # A forked child has none of its parent's.
  class UnderWay
    def initialize
      begin_here
    end

    # It has begun.
    def add(one)
      after_fork
      @mutex.synchronize { @all[one] = true }
    end

    # It has ended. Harmless when repeated.
    def delete(one)
      after_fork
      @mutex.synchronize do
        @all.delete(one)
        @ended.broadcast
      end
    end

    # Wait until all have ended, or `seconds` of real time are over.
    def wait(seconds)
      after_fork
      give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      @mutex.synchronize do
        until @all.empty? || (left = give_up - Process.clock_gettime(Process::CLOCK_MONOTONIC)) <= 0
          @ended.wait(@mutex, left)
        end
      end
    end

    private

    def begin_here
      @pid = Process.pid
      @mutex = Mutex.new
      @ended = ConditionVariable.new
      @all = {}.compare_by_identity
    end

    def after_fork
      begin_here if @pid != Process.pid
    end
  end
end
