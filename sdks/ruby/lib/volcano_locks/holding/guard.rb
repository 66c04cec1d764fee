# frozen_string_literal: true

require "monitor"

# Holding a lock: what is known of one acquisition, and the guard that shows it to the code inside the block.
#
# `lost?` is not a flag somebody sets in time: it compares the clock with the local deadline whenever it is asked, so it
# is right even if the renewals are starved, stuck or dead (SDK-4). It turns true once and stays so: a renewal confirmed
# after a caller could have seen the loss is not believed. It takes no lock, so a trap handler may ask too (case 55).
#
# Once its block is being left a guard counts as lost too, so that a thread that outlives the block stops (SDK-5). The
# block's own outcome knows only a loss while it was held.
#
# After `fork` the child's guard is lost, and the child never releases its parent's lock (SDK-6).
#
# Not promised: code that does not ask is not stopped. Writes after a long pause are refused only by a check of the
# fencing token where they land.
module VolcanoLocks
  # One acquisition: its newest lease, its plan, and at most one loss. Asked from any thread.
  class Hold
    # @return [Lease] the newest confirmed lease
    attr_reader :lease

    # `acquired_at`: an instant before the grant.
    def initialize(lease, clock, timeout_seconds, jitter, acquired_at:)
      @lease = lease
      @clock = clock
      @pid = Process.pid
      @monitor = Monitor.new
      @heartbeat = Heartbeat.new(ttl_seconds: lease.ttl_seconds, acquired_at: acquired_at,
                                 deadline: lease.deadline, timeout_seconds: timeout_seconds, jitter: jitter)
      @loss = nil
      @expired = false
      @left = false
      @last_failure = nil
      @over = Signal.new
    end

    # @return [Boolean] whether this process is a child of the one that acquired
    def forked?
      Process.pid != @pid
    end

    # @return [Boolean] whether the lease must not be relied on now. Takes no lock.
    def lost?
      @left || !@loss.nil? || forked? || expired?
    end

    # @return [LockOwnershipLostError, nil] the one loss of this hold, found by looking at the clock if need be. After
    #   `leave` it stays as it was.
    def loss
      return loss_of("it belongs to the process that acquired it, not to its fork", nil) if forked?

      @monitor.synchronize do
        lose_locally if expired?
        @loss
      end
    end

    # @return [LockOwnershipLostError, nil] why the lease must not be relied on now: the loss, or else that the block
    #   was left
    def held_no_more
      loss || (@left ? loss_of("its block was left", nil) : nil)
    end

    # @return [Float] the instant on the client's clock after which the lease must not be relied on
    def deadline
      @heartbeat.deadline
    end

    # @return [Heartbeat::Renew, Heartbeat::Wait, nil] what the renewals do now; nil when they have ended
    def next_step
      @monitor.synchronize do
        return nil if @left || loss

        step = @heartbeat.next_step(@clock.now)
        step.is_a?(Heartbeat::Lost) ? nil : step
      end
    end

    # A renewal was confirmed. Ignored once the block was left or the lease was lost (cases 3 and 8).
    def renewed(lease)
      @monitor.synchronize do
        next if @left || loss || !@heartbeat.renewed(lease.deadline, @clock.now)

        @lease = lease
        @last_failure = nil
      end
    end

    # A renewal was not confirmed: no loss yet (SDK-3).
    def failed(error)
      @monitor.synchronize do
        @last_failure = error
        @heartbeat.failed(@clock.now, error.is_a?(VolcanoError) ? error.retry_after : nil)
      end
    end

    # The server said that the lease is lost. Only the first loss counts (case 12).
    def lose(error)
      @monitor.synchronize do
        next if @loss || @left

        @loss = error
        @over.set
      end
    end

    # The block is being left: a last look at the clock, then nothing changes any more.
    def leave
      return if forked?

      @monitor.synchronize do
        loss
        @left = true
        @over.set
      end
    end

    # Nobody can leave the block any more. Takes no lock: a finalizer may run anywhere.
    def forget
      @left = true
    end

    # Until the loss, the leaving or the time is up; whether it is held no more.
    def wait_lost(seconds)
      until_ = seconds.nil? ? Float::INFINITY : @clock.now + seconds
      @clock.wait([until_, deadline].min, @over) until lost? || @clock.now >= until_
      lost?
    end

    private

    # Once seen it stays so: without a lock a renewal could move the deadline just after the comparison. The clock is
    # read first, so that a renewal confirmed in between counts.
    def expired?
      @expired ||= @clock.now >= deadline
    end

    def lose_locally
      lose(loss_of("not renewed within its #{@lease.ttl_seconds} seconds", @last_failure)) unless @loss || @left
    end

    def loss_of(why, cause)
      message = "the lease of #{@lease.key.inspect} is lost: #{why}"
      raise LockOwnershipLostError.new(message, code: LOCK_OWNERSHIP_LOST), cause: cause
    rescue LockOwnershipLostError => e
      e
    end
  end

  # The lock as the block of `with_lock` sees it. May be used from any thread.
  class LockGuard
    include Discreet

    def initialize(hold)
      @hold = hold
      @release_error = nil
    end

    # @return [Lease] the newest lease: renewals replace it (case 22)
    def lease
      @hold.lease
    end

    # @return [String] the lock's key
    def key
      @hold.lease.key
    end

    # @return [Integer] the number to send along with every write; renewals keep it
    def fencing_token
      @hold.lease.fencing_token
    end

    # @return [Boolean] whether the lease must not be relied on any more, judged now: it was lost, or its block was
    #   left. Never turns false again. This, `lease`, `key` and `fencing_token` also work in a trap handler.
    def lost?
      @hold.lost?
    end

    # Sleep until the loss, or the end of the block, or `timeout` seconds.
    #
    # @param timeout [Numeric, nil] seconds; nil waits without limit
    # @return [Boolean] whether it is `lost?`
    def wait_lost(timeout: nil)
      @hold.wait_lost(timeout)
    end

    # @raise [LockOwnershipLostError] if `lost?`; it says whether by a loss or because the block was left
    def raise_if_lost!
      loss = @hold.held_no_more
      raise loss if loss
    end

    # @return [VolcanoError, nil] why the release on leaving the block was not confirmed; the lock then frees itself at
    #   its expiry. Set by the block.
    attr_accessor :release_error

    # @return [String]
    def inspect
      "#<#{self.class} #{lease.inspect} lost=#{lost?}>"
    end
  end
end
