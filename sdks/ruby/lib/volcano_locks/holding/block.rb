# frozen_string_literal: true

module VolcanoLocks
  # One `with_lock` block: acquire and start renewing; stop renewing, then release.
  #
  # Once the block ends (SDK-5), no renewal starts or counts, and a late response changes nothing. The release is
  # bounded in time. The outcome depends on the body:
  #
  # - The body raised: its error is raised; a loss or a failed release is attached to it
  #   ({VolcanoLocks.attached_errors}).
  # - The body succeeded but the lock was lost meanwhile: {LockOwnershipLostError}.
  # - The body succeeded and held the lock throughout, but the release was not confirmed: the block succeeds. Its work
  #   was protected; reporting a failure would invite doing it twice. The lock frees itself when the lease expires. The
  #   failure is in `guard.release_error` and logged.
  #
  # A block with a minimum holding time (SDK-12) that ends sooner renews once, with the remaining time as TTL, instead
  # of releasing. Errors of that renewal count as errors of the release.
  class Block
    RELEASE_SECONDS_MAX = 5.0
    RELEASE_LOST_SECONDS_MAX = 1.0
    RENEWAL_END_SECONDS_MAX = 1.0

    # @return [LockGuard] for the body, once entered
    attr_reader :guard
    # @return [LockOwnershipLostError, nil] the loss, if one was found by the end of the block
    attr_reader :loss

    # `hold_seconds`: the minimum holding time, counted from entering. `renew_every` fixes the renewal interval.
    def initialize(operations, renewer, clock, acquisition, hold_seconds, renew_every)
      @hold_seconds = hold_seconds
      @renew_every = renew_every
      @hold_until = 0.0
      @loss = nil
      @operations = operations
      @renewer = renewer
      @clock = clock
      @acquisition = acquisition
      @hold = nil
      @guard = nil
    end

    # Acquire the lock and start renewing it. Raises if the lock cannot be acquired (case 18).
    def enter
      OpenBlocks.refuse_nested(@renewer, @acquisition.key)
      lease = @acquisition.run
      @hold_until = @clock.now + @hold_seconds
      hold = Hold.new(lease, @clock, @operations.timeout_seconds, Random.rand,
                      acquired_at: @acquisition.granted_after, renew_every: @renew_every,
                      quota_scarce: @operations.quota_scarce?)
      @guard = LockGuard.new(hold)
      # A block in a fiber that is never resumed does not end. Its renewal ends when the guard is garbage-collected.
      ObjectSpace.define_finalizer(@guard, Block.finalizer_for(hold))
      @hold = hold
      @acquisition.complete
      OpenBlocks.add(@renewer, hold)
      @renewer.add(hold)
    end

    # End the block, whether or not `enter` succeeded. Call it with interrupts deferred.
    #
    # @param error [Exception, nil] the body's error
    # @param aborting [Boolean] whether the thread is being killed, so that raising is pointless
    def leave(error, aborting: false)
      return @acquisition.abandon(error) unless @hold

      @acquisition.complete
      OpenBlocks.remove(@hold)
      @loss = stop_and_release
      raise @loss if @loss && error.nil? && !aborting

      [@loss, @guard.release_error].compact.each { |other| Errors.attach(error, other) } if error
    end

    # A proc that does not refer to the guard: a reference would keep the guard alive.
    def self.finalizer_for(hold)
      proc { hold.abandon }
    end

    private

    def stop_and_release
      @hold.leave
      # A renewal in progress that arrives after the last one would shorten the minimum holding time.
      @renewer.remove(@hold, seconds_to_hold.positive? ? RENEWAL_END_SECONDS_MAX : 0.0)
      loss = @hold.loss
      @hold.log_loss
      # Lost according to the server, or held by the parent process: nothing to release.
      return loss if @hold.forked? || loss&.status

      release_or_keep(loss)
    end

    def release_or_keep(loss)
      if loss.nil? && seconds_to_hold.positive?
        keep_until_minimum
      else
        @operations.release(@hold.lease, nil, until_: release_deadline(loss))
      end
      loss
    rescue LockOwnershipLostError => e
      loss || e
    rescue VolcanoError => e
      @guard.release_error = e
      Log.warn(not_released_message(e)) unless loss
      loss
    end

    # Rounded up to whole seconds; a floating-point error below a microsecond adds no second.
    def keep_until_minimum
      ttl_seconds = [seconds_to_hold.round(6).ceil, Arguments::TTL_SECONDS_MIN].max
      @operations.renew_until(@hold.lease, ttl_seconds, release_deadline(nil), must_finish: true)
    end

    def seconds_to_hold
      @hold_until - @clock.now
    end

    def release_deadline(loss)
      now = @clock.now
      return now + RELEASE_LOST_SECONDS_MAX if loss

      [[now + RELEASE_SECONDS_MAX, @hold.deadline].min, now + RELEASE_LOST_SECONDS_MAX].max
    end

    def not_released_message(error)
      "the release of lock #{@hold.lease.key}, or its last renewal for hold_at_least, failed; the lock frees itself " \
        "when its lease expires: #{error.message}"
    end
  end
end
