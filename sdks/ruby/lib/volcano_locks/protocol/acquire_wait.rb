# frozen_string_literal: true

module VolcanoLocks
  # Ends whatever waits in this thread, because its caller's `stop` said so. No failure, and told to nobody.
  class Stopped < StandardError; end
  private_constant :Stopped

  # One acquire that waits (SDK-11): it asks again and again with one token until the lock is granted or the time is up.
  #
  # The server keeps the line and answers when it is this caller's turn; here is what a client adds. It goes on over
  # broken connections, restarts and a spent quota. It never hands out a lease of which it does not know how long it is
  # good: the lease began at the grant, somewhere between the request and its answer, so an answer that took long is
  # confirmed by a renewal. A lease that cannot be confirmed, or that ran out unheard of, is given back and waited for
  # anew with a new token. And whatever ends it, an interrupt in any phase included, leaves neither a lease nor a place
  # in the line behind.
  #
  # Not promised: a place in the line over an absence longer than the server keeps it (WAIT-6).
  class Wait < Acquisition
    WAIT_SLICE_SECONDS = 50.0
    SOON_FRACTION = 0.5
    FRESH_FRACTION = 1.0 / 3
    # Less than this is not worth a request: it is below what the wire's clocks tell apart.
    WORTH_ASKING_SECONDS = 0.001

    # A lease was granted, and it could not be found out in time how long it is good.
    class UnconfirmedError < TransportError
      def initialize(message, retry_after:, request_id:)
        super(message, request_id: request_id)
        @retry_after = retry_after
      end
    end
    private_constant :UnconfirmedError

    # @param wait_seconds [Float] may be infinite
    # @param stop [#call, nil] asked now and then whether to stop; `run` then raises {Stopped}
    def initialize(flows, courier, clock, wait_seconds:, stop: nil, **options)
      super(flows, courier, clock, **options)
      @wait_seconds = wait_seconds
      @stop = stop
      @asked = false
      @over = false
      @too_soon = false
      @rests = Rests.new
    end

    # @return [Lease]
    # @raise [LockHeldError] when the time is up, or the last failure, or whatever ends the wait at once
    def run
      @courier.under_way.add(self)
      @until = @clock.now + @wait_seconds
      Attendance.during(@clock) do
        loop do
          lease = lease_or_rest
          return lease if lease
        end
      end
    end

    private

    # Who ends in good order has heard that the token holds nothing; the place, which nobody would take, is not kept
    # for long. Whoever is cut short has not.
    def to_give_back?
      @uncertain || (@asked && !@over)
    end

    def lease_or_rest
      lease = slice
      fresh?(lease) ? lease : confirmed(lease)
    rescue VolcanoError => e
      rest = rest_after(e)
      if rest.nil?
        @over = !@courier.closing?
        raise
      end
      let_go if e.is_a?(UnconfirmedError) || e.is_a?(LockOwnershipLostError)
      @courier.rest(rest, stop: @stop) if rest.positive?
      nil
    end

    # The lease that one request brings.
    def slice
      @sent_at = @clock.now
      wait_seconds = [WAIT_SLICE_SECONDS, [@until - @sent_at, 0.0].max].min
      @asked = true
      uncertainly(@sent_at) do
        answer = @courier.ask("POST", Flows.lease_path(@key), request_id: @request_id, token: @token,
                                                              ttl_seconds: @ttl_seconds, wait_seconds: wait_seconds,
                                                              timeout_seconds: wait_seconds + @flows.timeout_seconds,
                                                              stop: @stop)
        @too_soon = @clock.now - @sent_at < wait_seconds * SOON_FRACTION
        lease_from(answer, @sent_at + @ttl_seconds)
      end
    end

    def fresh?(lease)
      @clock.now - @sent_at <= lease.ttl_seconds * FRESH_FRACTION
    end

    # The lease, with a deadline counted from a renewal. It is good for at most its TTL from now.
    def confirmed(lease)
      @flows.renew_until(lease, lease.ttl_seconds, @clock.now + lease.ttl_seconds)
    rescue VolcanoError => e
      raise if @courier.closing?

      message = "the lease of #{@key.inspect} that was waited for could not be confirmed: #{e.message}"
      raise UnconfirmedError.new(message, retry_after: e.retry_after, request_id: e.request_id)
    end

    # How long to rest before asking again; nil if `failure` ends the wait.
    def rest_after(failure)
      if failure.is_a?(LockHeldError)
        @rests.over unless @too_soon
        rest = @too_soon ? @rests.seconds(failure) : 0.0
      elsif failure.is_a?(LockOwnershipLostError) && @uncertain
        rest = 0.0 # what an answer that nobody got had granted is over
      elsif Rests.pass_by?(failure)
        rest = @rests.seconds(failure)
      else
        return nil
      end
      @until - (@clock.now + rest) < WORTH_ASKING_SECONDS ? nil : rest
    end

    # Release what the token may still hold, and go on with another: this one may be retired.
    def let_go
      release(nil)
      @token = Arguments.new_uuid
      @uncertain = false
    end
  end
end
