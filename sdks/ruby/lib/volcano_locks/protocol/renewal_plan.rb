# frozen_string_literal: true

module VolcanoLocks
  # Decides when a lease is renewed, without a clock, a thread or a socket.
  #
  # Call `next_step(now)` and do what it returns: {Renew} now, {WaitUntil} an instant, or treat the lease as {Lost}.
  # Report the outcome with `renewed` or `failed`, and call it again.
  #
  # SDK-3: the next attempt comes after about a third of the TTL, with jitter so that many holders do not renew at the
  # same time, but after at most 60 seconds, so that a holder notices a forced release. The 60 seconds do not apply
  # while half of the project's quota is spent, and `renew_every` replaces both. A failed attempt is retried with
  # back-off while the lease is safely alive. A `Retry-After` is honoured, but for at most half of the remaining time,
  # so that a healthy holder always gets another attempt.
  # SDK-4: only a confirmed response moves the deadline, to `time that request was sent + ttl`, and never past the
  # absolute end of the acquisition. After the deadline, the lease stays lost.
  #
  # Limit: the server may accept an attempt in the last second by its own clock; the plan only stops sending.
  class RenewalPlan
    ACQUISITION_SECONDS_MAX = 7_776_000
    RENEW_AT_FRACTION = 1.0 / 3
    RENEW_SECONDS_MAX = 60.0
    JITTER_FRACTION = 0.1
    MARGIN_SECONDS = 1.0
    BACKOFF_SECONDS_MIN = 0.2
    BACKOFF_SECONDS_MAX = 10.0
    ATTEMPT_SECONDS_MIN = 1.0
    FAILURES_COUNTED_MAX = 32

    # Send a renewal now, with this timeout.
    Renew = Struct.new(:timeout_seconds)
    # Nothing to do before this instant.
    WaitUntil = Struct.new(:instant)
    # The deadline has passed.
    Lost = Class.new

    # @return [Float] the instant when the lease ends for its holder
    attr_reader :deadline

    # The plan of one acquisition. Instants are seconds on the client's clock. `acquired_at` is an instant before the
    # grant; `deadline` is the TTL after the granted request was sent. `jitter` in [0, 1) sets this holder's
    # position in the spread. `timeout_seconds` limits one request. `renew_every` fixes the interval.
    def initialize(ttl_seconds:, acquired_at:, deadline:, timeout_seconds:, jitter: 0.5, renew_every: nil,
                   quota_scarce: false)
      @ttl_seconds = ttl_seconds
      @timeout_seconds = timeout_seconds
      @spread = 1 + (JITTER_FRACTION * ((2 * jitter) - 1))
      @shorter = 1 - (JITTER_FRACTION * jitter)
      @renew_every = renew_every
      @end = acquired_at + ACQUISITION_SECONDS_MAX
      @failures = 0
      plan(deadline, quota_scarce)
    end

    # @return [Renew, WaitUntil, Lost] what to do at `now`
    def next_step(now)
      return Lost.new if now >= @deadline
      return WaitUntil.new(@deadline) if last_attempt_at <= now
      return WaitUntil.new([@due, last_attempt_at].min) if now < @due

      left = @deadline - now
      Renew.new([@timeout_seconds, left, [ATTEMPT_SECONDS_MIN, left / 2].max].min)
    end

    # A renewal was confirmed; the lease lasts until `deadline`.
    #
    # @return [Boolean] false if it came too late and changes nothing
    def renewed(deadline, now, quota_scarce: false)
      return false if now >= @deadline

      @failures = 0
      plan(deadline, quota_scarce)
      true
    end

    # A renewal was not confirmed; plan the next attempt.
    def failed(now, retry_after = nil)
      backoff = [BACKOFF_SECONDS_MIN * (2.0**@failures), BACKOFF_SECONDS_MAX, @ttl_seconds / 10.0].min
      @failures = [@failures + 1, FAILURES_COUNTED_MAX].min
      delay = [backoff * @spread, retry_after || 0.0].max
      @due = now + [[delay, (last_attempt_at - now) / 2].min, BACKOFF_SECONDS_MIN].max
    end

    private

    def plan(deadline, quota_scarce)
      @due = deadline - @ttl_seconds + interval(quota_scarce)
      @deadline = [deadline, @end].min
    end

    # Jitter makes a fixed interval only shorter.
    def interval(quota_scarce)
      return @renew_every * @shorter if @renew_every

      third = @ttl_seconds * RENEW_AT_FRACTION * @spread
      quota_scarce ? third : [third, RENEW_SECONDS_MAX * @shorter].min
    end

    def last_attempt_at
      @deadline - MARGIN_SECONDS
    end
  end
end
