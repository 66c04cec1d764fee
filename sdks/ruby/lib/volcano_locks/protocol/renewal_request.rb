# frozen_string_literal: true

module VolcanoLocks
  # One renewal, sent once: {Operations} waits for it, or the background {Renewer} starts it and collects its result.
  class RenewalRequest
    def initialize(operations, sender, clock, lease, ttl_seconds, request_id, timeout_seconds)
      @operations = operations
      @sender = sender
      @lease = lease
      @ttl_seconds = ttl_seconds
      @lease_deadline = clock.now + ttl_seconds
      @request_id = request_id
      @timeout_seconds = timeout_seconds
    end

    # @return [Lease] the renewed lease, after waiting for the response
    def send_and_wait(must_finish: false)
      renewed_lease(@sender.send_request("PATCH", Operations.lease_path(@lease.key), must_finish: must_finish,
                                                                                     **options))
    end

    # Send it without waiting. The block is called in another thread when the request is over.
    def start(&on_over)
      @pending = @sender.start_request("PATCH", Operations.lease_path(@lease.key), **options, &on_over)
    end

    # @return [Boolean] whether `result` is available
    def finished?
      @pending.done? || @pending.timed_out?
    end

    # @return [Float] the latest instant at which `finished?` becomes true
    def deadline
      @pending.deadline
    end

    # @return [Lease] the renewed lease
    # @raise [VolcanoError] if it was not renewed
    def result
      @pending.cancel
      renewed_lease(@sender.response_of(@pending))
    end

    # Stop it: its result is not needed.
    def cancel
      @pending.cancel
    end

    # Let it finish within `seconds` of real time, then cancel it.
    def finish_within(seconds)
      @pending.signal.sleep(seconds) { false } unless @pending.done?
      cancel
    end

    private

    def options
      { request_id: @request_id, token: @lease.token, ttl_seconds: @ttl_seconds, timeout_seconds: @timeout_seconds }
    end

    def renewed_lease(response)
      lease = @operations.granted_lease(response, 200, key: @lease.key, token: @lease.token, ttl_seconds: @ttl_seconds,
                                                       deadline: @lease_deadline, request_id: @request_id)
      @operations.check_not_expired(lease, @request_id)
    end
  end
end
