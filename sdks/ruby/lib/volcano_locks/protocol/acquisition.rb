# frozen_string_literal: true

module VolcanoLocks
  # One acquire, with a memory of what may have come of it.
  #
  # What might be held is noted before each send, not after its answer: so whatever ends the caller, wherever it hits,
  # `give_up` knows whether there is something to give back (case 37). A client that is being closed cuts its request
  # short and waits, a while, for that.
  #
  # Not promised: that the release of `give_up` arrives. Until it does the lock may stay held for one TTL; acquiring
  # again with the same `token` then gives the same lease.
  class Acquisition
    # @return [Float] an instant before the lease was granted: that of the first request which may have brought it
    attr_reader :granted_after

    def initialize(flows, courier, clock, key:, token:, ttl_seconds:, request_id:)
      @flows = flows
      @courier = courier
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

    # @return [Lease] whose deadline is the time before its request plus its TTL
    def run
      @courier.under_way.add(self)
      timeout_seconds = [@flows.timeout_seconds, @ttl_seconds.to_f].min
      @flows.retried { attempt(timeout_seconds) }
    end

    # The caller has the lease: there is nothing to give back any more.
    def taken
      @courier.under_way.delete(self)
    end

    # Release what may have been acquired without the caller knowing of it (SDK-2). `error` is what the caller will be
    # told; a failure is attached to it. Does nothing where nothing can be held. Not for a lease that the caller has.
    #
    # `recoverable`: the caller has the token, so after a failure that is worth another try it asks again (SDK-18).
    def give_up(error, recoverable: false)
      return if recoverable && (@timed_out || Flows.worth_another_try?(error))

      release(error) if to_give_back? && Process.pid == @pid
    ensure
      taken
    end

    private

    def to_give_back?
      @uncertain
    end

    def release(error)
      id = Arguments.new_uuid
      answer = @courier.ask("DELETE", Flows.lease_path(@key), request_id: id, token: @token, to_the_end: true,
                                                              timeout_seconds: Flows::GIVE_UP_SECONDS_MAX)
      @flows.expect(answer, 204, id)
    rescue LockOwnershipLostError
      nil # it holds nothing, which is all that was asked
    rescue VolcanoError => e
      Errors.attach(error, e) if error
    end

    def attempt(timeout_seconds)
      sent_at = @clock.now
      deadline = sent_at + @ttl_seconds
      uncertainly(sent_at) do
        answer = @courier.ask("POST", Flows.lease_path(@key), request_id: @request_id, token: @token,
                                                              ttl_seconds: @ttl_seconds,
                                                              timeout_seconds: timeout_seconds)
        @flows.in_time(lease_from(answer, deadline), @request_id)
      end
    rescue TransportError => e
      # A lease that this request was granted has ended by now: another try would not find it (case 14).
      raise if e.is_a?(LateAnswerError) || !@uncertain || @clock.now < deadline

      @timed_out = true
      raise LateAnswerError.new(e.message, request_id: @request_id), cause: nil
    end

    # What the block returns; it sends one request.
    def uncertainly(sent_at)
      before = @uncertain
      @granted_after = sent_at unless before
      @uncertain = true
      begin
        yield
      rescue VolcanoError => e
        @uncertain = before || Flows.may_have_been_served?(e)
        @granted_after = sent_at if e.is_a?(LockHeldError) # by then the token had nothing
        raise
      end
    end

    def lease_from(answer, deadline)
      @flows.granted(answer, 201, key: @key, token: @token, ttl_seconds: @ttl_seconds, deadline: deadline,
                                  request_id: @request_id)
    end
  end
end
