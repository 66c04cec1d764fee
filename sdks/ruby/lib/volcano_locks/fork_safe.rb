# frozen_string_literal: true

module VolcanoLocks
  # Gives a forked child its own threads, connections and locks: an including class creates them in `reset`, and calls
  # `reset_after_fork` before it uses them (SDK-6).
  module ForkSafe
    private

    def reset_after_fork
      return if @pid == Process.pid

      @pid = Process.pid
      reset
    end
  end
end
