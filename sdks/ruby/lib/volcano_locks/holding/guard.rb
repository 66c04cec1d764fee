# frozen_string_literal: true

module VolcanoLocks
  # The held lock as the block of `with_lock` sees it. Any thread may use it.
  class LockGuard
    include Redacted

    def initialize(hold)
      @hold = hold
      @release_error = nil
    end

    # @return [Lease] the newest lease: renewals replace it
    def lease
      @hold.lease
    end

    # @return [String] the lock's key
    def key
      @hold.lease.key
    end

    # @return [Integer] the number to send with every write; renewals keep it
    def fencing_token
      @hold.lease.fencing_token
    end

    # @return [Boolean] whether the lock was lost or the block has ended, checked at each call. Never becomes false
    #   again. `lost?`, `raise_if_lost!`, `lease`, `key` and `fencing_token` also work in a trap handler
    def lost?
      @hold.lost?
    end

    # Sleep until the loss, the end of the block, or `timeout` seconds.
    #
    # @param timeout [Numeric, nil] seconds; nil has no limit
    # @return [Boolean] whether it is `lost?`
    def wait_lost(timeout: nil)
      @hold.wait_lost(timeout)
    end

    # @raise [LockOwnershipLostError] if `lost?`; its message says whether the lock was lost or the block has ended
    def raise_if_lost!
      loss = @hold.loss_or_end
      raise loss if loss
    end

    # @return [VolcanoError, nil] why the release after the block was not confirmed; the lock then frees itself when its
    #   lease expires. Set by the block.
    attr_accessor :release_error

    # @return [String]
    def inspect
      "#<#{self.class} #{lease.inspect} lost=#{lost?}>"
    end
  end
end
