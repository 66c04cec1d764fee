# frozen_string_literal: true

require "monitor"

module VolcanoLocks
  # One acquisition: its newest lease, its renewal plan, and at most one loss. Any thread may use it.
  #
  # `lost?` compares the clock with the local deadline at each call, so it is right even if the renewals are delayed,
  # stuck or dead (SDK-4). Once true it stays true: a renewal confirmed after a caller could have seen the loss changes
  # nothing. It takes no lock, so a trap handler may call it (case 55).
  #
  # When its block ends, a hold counts as lost too, so that a thread that outlives the block stops (SDK-5). The block's
  # own outcome reports only a loss that happened before its end.
  #
  # After `fork` the child's hold is lost, and the child never releases its parent's lock (SDK-6).
  #
  # Limit: code that does not check `lost?` is not stopped. After a long pause, only a check of the fencing token at the
  # target of a write refuses that write.
  class Hold
    # @return [Lease] the newest confirmed lease
    attr_reader :lease

    # `acquired_at`: an instant before the grant. `plan`: more options of the {RenewalPlan}.
    def initialize(lease, clock, timeout_seconds, jitter, acquired_at:, **plan)
      @lease = lease
      @clock = clock
      @pid = Process.pid
      @monitor = Monitor.new
      @plan = RenewalPlan.new(ttl_seconds: lease.ttl_seconds, acquired_at: acquired_at,
                              deadline: lease.deadline, timeout_seconds: timeout_seconds, jitter: jitter, **plan)
      @loss = nil
      @expired = @loss_logged = false
      @left = false
      @last_failure = nil
      @over = Signal.new
    end

    # @return [Boolean] whether this process is a child of the one that acquired the lock
    def forked?
      Process.pid != @pid
    end

    # @return [Boolean] whether the lease is no longer the caller's. Takes no lock.
    def lost?
      @left || !@loss.nil? || forked? || expired?
    end

    # Checks the deadline first. After `leave` the result no longer changes. Takes no lock.
    #
    # @return [LockOwnershipLostError, nil] the loss of this hold
    def loss
      return loss_error("it belongs to the process that acquired it, not to its fork", nil) if forked?

      record_expiry if expired?
      @loss
    end

    # Log the loss, once, from a thread of the client or at the end of the block.
    def log_loss
      return if @loss.nil? || @loss_logged

      @loss_logged = true
      Log.warn("lost the lock #{@lease.key}: #{@loss.message}")
    end

    # @return [LockOwnershipLostError, nil] why the lease is no longer the caller's: the loss, or the block's end
    def loss_or_end
      loss || (@left ? loss_error("its block has ended", nil) : nil)
    end

    # @return [Float] the instant on the client's clock when the lease ends for its holder
    def deadline
      @plan.deadline
    end

    # @return [RenewalPlan::Renew, RenewalPlan::WaitUntil, nil] what to do next; nil when renewal has ended
    def next_step
      @monitor.synchronize do
        return nil if @left || loss

        step = @plan.next_step(@clock.now)
        step.is_a?(RenewalPlan::Lost) ? nil : step
      end
    end

    # A renewal was confirmed. Ignored once the block has ended or the lease was lost (cases 3 and 8).
    def renewed(lease, quota_scarce: false)
      @monitor.synchronize do
        next if @left || loss || !@plan.renewed(lease.deadline, @clock.now, quota_scarce: quota_scarce)

        @lease = lease
        @last_failure = nil
      end
    end

    # A renewal was not confirmed. This is not a loss yet (SDK-3).
    def failed(error)
      unless @left
        Log.warn("a renewal of the lock #{@lease.key} failed and is repeated while the lease lives: #{error.message}")
      end
      @monitor.synchronize do
        @last_failure = error
        @plan.failed(@clock.now, error.is_a?(VolcanoError) ? error.retry_after : nil)
      end
    end

    # The server reported that the lease is lost. Only the first loss counts (case 12).
    def lose(error)
      @monitor.synchronize do
        next if @loss || @left

        @loss = error
        @over.set
      end
    end

    # The block ends: check the deadline once more. Nothing changes after that.
    def leave
      return if forked?

      @monitor.synchronize do
        loss
        @left = true
        @over.set
      end
    end

    # The guard was garbage-collected. Takes no lock, because a finalizer may run anywhere.
    def abandon
      @left = true
    end

    # Wait for the loss, the block's end, or `seconds`. Returns `lost?`.
    def wait_lost(seconds)
      until_ = seconds.nil? ? Float::INFINITY : @clock.now + Arguments.checked_seconds("timeout", seconds)
      @clock.wait([until_, deadline].min, @over) until lost? || @clock.now >= until_
      lost?
    end

    private

    # Once true it stays true: without a lock, a renewal could move the deadline just after the comparison. The clock is
    # read first, so that a renewal confirmed in between counts.
    def expired?
      @expired ||= @clock.now >= deadline
    end

    # Only the first loss counts. Ruby switches threads at no point of the assignment. A thread that waits for the
    # loss wakes at the deadline.
    def record_expiry
      return if @loss || @left

      error = loss_error("not renewed within its #{@lease.ttl_seconds} seconds", @last_failure)
      @loss = error if @loss.nil?
    end

    def loss_error(why, cause)
      message = "the lease of #{@lease.key.inspect} is lost: #{why}"
      raise LockOwnershipLostError.new(message, code: LOCK_OWNERSHIP_LOST), cause: cause
    rescue LockOwnershipLostError => e
      e
    end
  end
end
