# frozen_string_literal: true

module VolcanoLocks
  # How long whoever waits rests after a failure before asking again (SDK-11): longer each time, never in step.
  #
  # Many wait for one lock or watch it, and what fails for one (a node that stops) fails for all at once. So each rest
  # is drawn at random from a span that doubles; a server's `Retry-After` is kept, and lengthened a little.
  class Rests
    REST_SECONDS_MIN = 0.2
    REST_SECONDS_MAX = 5.0
    LENGTHENED_FRACTION = 0.1
    COUNTED_MAX = 32

    def initialize
      @in_a_row = 0
    end

    # Something went well: the next rest is a first one.
    def over
      @in_a_row = 0
    end

    # @return [Float] seconds to rest; 0 after a first request that got no answer
    def seconds(failure)
      first = @in_a_row.zero?
      @in_a_row = [@in_a_row + 1, COUNTED_MAX].min
      told = failure.retry_after
      return told * (1 + (LENGTHENED_FRACTION * Random.rand)) if told&.positive?
      return 0.0 if first && failure.is_a?(TransportError)

      longest = [REST_SECONDS_MIN * (2.0**@in_a_row), REST_SECONDS_MAX].min
      REST_SECONDS_MIN + ((longest - REST_SECONDS_MIN) * Random.rand)
    end

    # @return [Boolean] whether waiting helps: no answer, a spent quota, a server in trouble
    def self.pass_by?(failure)
      return true if failure.is_a?(TransportError) || failure.is_a?(RateLimitedError)

      failure.is_a?(ServerError) && !failure.status.nil? && failure.status >= 500
    end
  end
end
