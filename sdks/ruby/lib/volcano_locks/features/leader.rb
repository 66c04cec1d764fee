# frozen_string_literal: true

module VolcanoLocks
  # Leadership: campaign, run the block while leading, and campaign again after a loss (SDK-13).
  #
  # Each term is a {Block}: the next campaign begins when the block has ended and the lock has been released.
  #
  # Limit: a block that does not check the guard is not stopped. Check `guard.lost?` before work that only the leader
  # may do, and send the fencing token with every write.
  class Leader
    # The block creates the {Block} of the next term.
    def initialize(stop, &new_term)
      unless stop.nil? || stop.respond_to?(:call)
        raise TypeError, "stop must respond to call, like a Proc or a Method, got #{stop.class}"
      end

      @stop = stop
      @new_term = new_term
    end

    # Yields the {Block} of each term to be run.
    #
    # @return [Object, nil] the block's value, or nil if `stop` ended a campaign
    def run
      until @stop&.call
        term = @new_term.call
        begin
          return yield term
        rescue LockOwnershipLostError => e
          raise unless e.equal?(term.loss)
        end
      end
    rescue Stopped
      nil
    end
  end
end
