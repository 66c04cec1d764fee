# frozen_string_literal: true

module VolcanoLocks
  # One `with_lock` block: acquire and start renewing; stop renewing, then release.
  #
  # Leaving (SDK-5): no renewal is begun or believed once it has started, and an answer that is still under way can
  # re-arm nothing. The release is bounded in time. What decides the outcome:
  #
  # - the body raised: its error goes on; a loss or a failed release is attached to it
  #   ({VolcanoLocks.attached_errors});
  # - the body succeeded but ownership was lost at some time: {LockOwnershipLostError};
  # - the body succeeded and owned the lock throughout, but the release was not confirmed: the block succeeds. Its work
  #   was protected, and to report it as failed would invite doing it twice; the lock frees itself at its expiry. The
  #   failure is kept in `guard.release_error` and logged.
  #
  # A block that is to hold on (SDK-12) and is left before that time renews once, to the rest, in the place of the
  # release, whose errors that renewal has.
  class Block
    RELEASE_SECONDS_MAX = 5.0
    RELEASE_LOST_SECONDS_MAX = 1.0
    RENEWAL_END_SECONDS_MAX = 1.0

    # @return [LockGuard] for the body, once entered
    attr_reader :guard
    # @return [LockOwnershipLostError, nil] the loss that was found by the time the block had been left
    attr_reader :loss

    # `hold_seconds`: how long after the entering the lock is held at least.
    def initialize(flows, keeper, clock, acquisition, hold_seconds)
      @hold_seconds = hold_seconds
      @held_until = 0.0
      @loss = nil
      @flows = flows
      @keeper = keeper
      @clock = clock
      @acquisition = acquisition
      @hold = nil
      @guard = nil
    end

    # Acquire, then have it renewed. Raises, and there is nothing to keep, when the lock cannot be had (case 18).
    def enter
      lease = @acquisition.run
      @held_until = @clock.now + @hold_seconds
      hold = Hold.new(lease, @clock, @flows.timeout_seconds, Random.rand,
                      acquired_at: @acquisition.granted_after)
      @guard = LockGuard.new(hold)
      # A block that is forgotten rather than left (in a fiber that nobody resumes) must not be renewed for ever.
      ObjectSpace.define_finalizer(@guard, Block.forgetting(hold))
      @hold = hold
      @acquisition.taken
      @keeper.add(hold)
    end

    # Leave, whatever came of entering. To be called with interrupts deferred.
    #
    # @param error [Exception, nil] the body's own
    # @param aborting [Boolean] whether the thread is being killed: there is nobody to raise anything to
    def leave(error, aborting: false)
      return @acquisition.give_up(error) unless @hold

      @acquisition.taken
      @loss = stop_and_let_go
      raise @loss if @loss && error.nil? && !aborting

      [@loss, @guard.release_error].compact.each { |other| Errors.attach(error, other) } if error
    end

    # A proc that does not know the guard, which it would keep alive.
    def self.forgetting(hold)
      proc { hold.forget }
    end

    private

    def stop_and_let_go
      @hold.leave
      # A renewal under way that landed after the last one would cut the holding on short.
      @keeper.remove(@hold, seconds_to_hold.positive? ? RENEWAL_END_SECONDS_MAX : 0.0)
      loss = @hold.loss
      # Told lost by the server, or somebody else's process: there is nothing of ours to release.
      return loss if @hold.forked? || loss&.status

      let_go(loss)
    end

    def let_go(loss)
      loss.nil? && seconds_to_hold.positive? ? hold_on : @flows.release(@hold.lease, nil, until_: release_until(loss))
      loss
    rescue LockOwnershipLostError => e
      loss || e
    rescue VolcanoError => e
      @guard.release_error = e
      VolcanoLocks.logger&.warn(not_released(e)) unless loss
      loss
    end

    # What a sum of fractions added below a microsecond is no second more.
    def hold_on
      ttl_seconds = [seconds_to_hold.round(6).ceil, Arguments::TTL_SECONDS_MIN].max
      @flows.renew_until(@hold.lease, ttl_seconds, release_until(nil), to_the_end: true)
    end

    def seconds_to_hold
      @held_until - @clock.now
    end

    def release_until(loss)
      now = @clock.now
      return now + RELEASE_LOST_SECONDS_MAX if loss

      [[now + RELEASE_SECONDS_MAX, @hold.deadline].min, now + RELEASE_LOST_SECONDS_MAX].max
    end

    def not_released(error)
      "lock #{@hold.lease.key} was not released or held on to, and frees itself at its expiry: #{error.message}"
    end
  end
end
