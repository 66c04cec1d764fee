# frozen_string_literal: true

module VolcanoLocks
  # When to renew, as a plan without a clock, a thread or a socket.
  #
  # Ask `next_step(now)` and do what it says: {Renew} now, {Wait} until an instant, or take the lease for {Lost}. Tell
  # it the outcome with `renewed` or `failed`, and ask again.
  #
  # SDK-3: the first try comes at about a third of the TTL, moved by jitter so that many holders do not ask in step. A
  # failed try is repeated with back-off while the lease is safely alive; a `Retry-After` is honoured, but never past
  # the half of what is left, so that a healthy holder always has another try.
  # SDK-4: the deadline moves only on a confirmed answer, to `time that request was sent + ttl`, and never past the
  # absolute end of one acquisition. Once it has passed, nothing brings the lease back.
  #
  # Not promised: that a try in the last second would be refused. The server refuses renewals there by its own clock;
  # the plan merely stops asking.
  class Heartbeat
    ACQUISITION_SECONDS_MAX = 7_776_000
    RENEW_AT_FRACTION = 1.0 / 3
    JITTER_FRACTION = 0.1
    MARGIN_SECONDS = 1.0
    BACK_OFF_SECONDS_MIN = 0.2
    BACK_OFF_SECONDS_MAX = 10.0
    TRY_SECONDS_MIN = 1.0
    FAILURES_COUNTED_MAX = 32

    # Send a renewal now and give it this long.
    Renew = Struct.new(:timeout_seconds)
    # Nothing to do before this instant.
    Wait = Struct.new(:until)
    # The deadline has passed.
    Lost = Class.new

    # @return [Float] the instant after which the lease must not be relied on
    attr_reader :deadline

    # The plan of one acquisition. Instants are seconds on the client's clock; `acquired_at` is one before the grant,
    # `deadline` the time before the request that told of it was sent plus the TTL. `jitter` in [0, 1) places this
    # holder in the spread; `timeout_seconds` is the most one request may take.
    def initialize(ttl_seconds:, acquired_at:, deadline:, timeout_seconds:, jitter: 0.5)
      @ttl_seconds = ttl_seconds
      @timeout_seconds = timeout_seconds
      @spread = 1 + (JITTER_FRACTION * ((2 * jitter) - 1))
      @end = acquired_at + ACQUISITION_SECONDS_MAX
      @failures = 0
      plan(deadline)
    end

    # @return [Renew, Wait, Lost] what to do at `now`
    def next_step(now)
      return Lost.new if now >= @deadline
      return Wait.new(@deadline) if last_try <= now || @deadline >= @end
      return Wait.new([@due, last_try].min) if now < @due

      left = @deadline - now
      Renew.new([@timeout_seconds, left, [TRY_SECONDS_MIN, left / 2].max].min)
    end

    # A renewal was confirmed, good until `deadline`.
    #
    # @return [Boolean] false if it came too late and changes nothing
    def renewed(deadline, now)
      return false if now >= @deadline

      @failures = 0
      plan(deadline)
      true
    end

    # A renewal was not confirmed; plan the next try.
    def failed(now, retry_after = nil)
      back_off = [BACK_OFF_SECONDS_MIN * (2.0**@failures), BACK_OFF_SECONDS_MAX, @ttl_seconds / 10.0].min
      @failures = [@failures + 1, FAILURES_COUNTED_MAX].min
      pause = [back_off * @spread, retry_after || 0.0].max
      @due = now + [[pause, (last_try - now) / 2].min, BACK_OFF_SECONDS_MIN].max
    end

    private

    def plan(deadline)
      @due = deadline - @ttl_seconds + (@ttl_seconds * RENEW_AT_FRACTION * @spread)
      @deadline = [deadline, @end].min
    end

    def last_try
      @deadline - MARGIN_SECONDS
    end
  end
end
