# frozen_string_literal: true

module VolcanoLocks
  # Back-off with jitter between the requests of a wait or a watch (SDK-11).
  #
  # A failure such as a stopped node affects many clients at once, so each delay is drawn at random from a range that
  # doubles. A server's `Retry-After` is honoured and extended by up to a tenth.
  class Backoff
    DELAY_SECONDS_MIN = 0.2
    DELAY_SECONDS_MAX = 5.0
    RETRY_AFTER_JITTER_FRACTION = 0.1
    FAILURES_COUNTED_MAX = 32

    def initialize
      @failures = 0
    end

    # Start again with the shortest delay, after a success.
    def reset
      @failures = 0
    end

    # @return [Float] seconds before the next request; 0 if the first request got no response
    def seconds_after(failure)
      first = @failures.zero?
      @failures = [@failures + 1, FAILURES_COUNTED_MAX].min
      retry_after = failure.retry_after
      return retry_after * (1 + (RETRY_AFTER_JITTER_FRACTION * Random.rand)) if retry_after&.positive?
      return 0.0 if first && failure.is_a?(TransportError)

      longest = [DELAY_SECONDS_MIN * (2.0**@failures), DELAY_SECONDS_MAX].min
      DELAY_SECONDS_MIN + ((longest - DELAY_SECONDS_MIN) * Random.rand)
    end

    # @return [Boolean] whether a later request may succeed: no response, a used-up quota, or a 5xx other than a
    #   damaged record (SDK-11)
    def self.transient?(failure)
      return false if failure.request_id.nil? # the program raised it into this thread
      return false if failure.code == RECORD_DAMAGED
      return true if failure.is_a?(TransportError) || failure.is_a?(RateLimitedError)

      failure.is_a?(ServerError) && !failure.status.nil? && failure.status >= 500
    end
  end
end
