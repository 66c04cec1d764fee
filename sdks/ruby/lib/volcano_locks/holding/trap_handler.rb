# frozen_string_literal: true

module VolcanoLocks
  # Runs work in another thread if this is a trap handler, where Ruby refuses every mutex (case 55).
  #
  # The handler waits for the work only for a limited time: the main thread, which it interrupted, may hold a mutex that
  # the work needs. The work then finishes after the handler has returned.
  module TrapHandler
    SECONDS_MAX = 2.0

    module_function

    # @return [Object, nil] the block's value; nil if the block still runs after `SECONDS_MAX` of real time
    def run
      return yield unless inside?

      thread = Thread.new do
        Thread.current.report_on_exception = false
        yield
      end
      thread.value if thread.join(SECONDS_MAX)
    end

    # @return [Boolean] whether this code runs in a trap handler
    def inside?
      Mutex.new.synchronize { false }
    rescue ThreadError
      true
    end
  end
  private_constant :TrapHandler
end
