# frozen_string_literal: true

module VolcanoLocks
  # Leadership: campaign, run a block while leading, campaign again when it was lost (SDK-13).
  #
  # The block runs inside a {Block} of its own for each term, so a term ends as a block does: no next campaign begins
  # before it has ended and the lock is given back.
  #
  # Not promised: that a block which does not look ends. Nothing can stop it; ask `guard.lost?` before what only the
  # leader may do, and send the fencing token along.
  class Leading
    # The block makes the next term's {Block}.
    def initialize(stop, &term)
      unless stop.nil? || stop.respond_to?(:call)
        raise TypeError, "stop must answer call, like a Proc or a Method, got #{stop.class}"
      end

      @stop = stop
      @term = term
    end

    # The block is told the {Block} of each term, and runs it.
    #
    # @return [Object, nil] what it returns, or nil once `stop` said so in a campaign
    def run
      until @stop&.call
        term = @term.call
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
