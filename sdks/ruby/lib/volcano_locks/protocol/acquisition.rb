# frozen_string_literal: true

module VolcanoLocks
  # One acquire that records whether the server may have granted it.
  #
  # It records a possible grant before each send, not after the response. So `abandon` knows whether a release is
  # needed, wherever an interrupt arrives (case 37). Closing the client cancels the request and waits for that release,
  # within bounds.
  #
  # Limit: if the release of `abandon` does not reach the server, the lock may stay held for one TTL; acquiring again
  # with the same `token` then gives the same lease.
  class Acquisition
    # @return [String] the lock
    attr_reader :key

    # @return [Float] an instant before the grant: when the first request that may have been granted was sent
    attr_reader :granted_after

    def initialize(operations, sender, clock, key:, token:, ttl_seconds:, request_id:)
      @operations = operations
      @sender = sender
      @clock = clock
      @key = key
      @token = token
      @ttl_seconds = ttl_seconds
      @request_id = request_id
      @pid = Process.pid
      @uncertain = false
      @timed_out = false
      @granted_after = clock.now
    end

    # @return [Lease] its deadline is the time before its request plus its TTL
    def run
      @sender.pending_acquisitions.add(self)
      timeout_seconds = [@operations.timeout_seconds, @ttl_seconds.to_f].min
      @operations.with_retry { attempt(timeout_seconds) }
    end

    # @return [Boolean] whether acquiring again with the same ids recovers what the server may have granted (SDK-18)
    def recoverable?(error)
      @uncertain && (@timed_out || Operations.retryable?(error))
    end

    # The caller has the lease: `abandon` is no longer needed.
    def complete
      @sender.pending_acquisitions.delete(self)
    end

    # Release what the server may have granted without the caller's knowledge (SDK-2). `error` is what the caller gets;
    # a failed release is attached to it. Does nothing if nothing can be held. Not for a lease that the caller has.
    #
    # `recoverable`: the caller has the token and acquires again after a retryable failure (SDK-18).
    def abandon(error, recoverable: false)
      return if recoverable && (@timed_out || Operations.retryable?(error))

      release(error) if release_needed? && Process.pid == @pid
    ensure
      complete
    end

    private

    def release_needed?
      @uncertain
    end

    def release(error)
      id = Arguments.new_uuid
      response = @sender.send_request("DELETE", Operations.lease_path(@key),
                                      request_id: id, token: @token, must_finish: true,
                                      timeout_seconds: Operations::ABANDON_SECONDS_MAX)
      @operations.expect_status(response, 204, id)
      Log.debug { "released the lock #{@key}, which an acquire with an unknown outcome may have acquired" }
    rescue LockOwnershipLostError
      nil # the token holds nothing, as intended
    rescue VolcanoError => e
      Errors.attach(error, e) if error
    end

    def attempt(timeout_seconds)
      sent_at = @clock.now
      deadline = sent_at + @ttl_seconds
      track_outcome(sent_at) do
        response = @sender.send_request("POST", Operations.lease_path(@key),
                                        request_id: @request_id, token: @token, ttl_seconds: @ttl_seconds,
                                        timeout_seconds: timeout_seconds)
        @operations.check_not_expired(lease_from(response, deadline), @request_id)
      end
    rescue TransportError => e
      # A lease granted to this request has ended by now, so a retry could not recover it (case 14).
      raise if e.is_a?(LateResponseError) || !@uncertain || @clock.now < deadline

      @timed_out = true
      raise LateResponseError.new(e.message, request_id: @request_id), cause: nil
    end

    # Run the block, which sends one request, and record whether it may have been granted.
    def track_outcome(sent_at)
      before = @uncertain
      @granted_after = sent_at unless before
      @uncertain = true
      begin
        yield
      rescue VolcanoError => e
        # An error of another request is one that the program raised into this thread.
        @uncertain = before || e.request_id != @request_id || Operations.may_have_been_served?(e)
        @granted_after = sent_at if e.is_a?(LockHeldError) # until then the token held nothing
        raise
      end
    end

    def lease_from(response, deadline)
      @operations.granted_lease(response, 201, key: @key, token: @token, ttl_seconds: @ttl_seconds,
                                               deadline: deadline, request_id: @request_id)
    end
  end
end
