# frozen_string_literal: true

module VolcanoLocks
  # Ends a wait because the caller's `stop` returned true. Never leaves the client.
  class Stopped < StandardError; end
  private_constant :Stopped

  # An acquire with `wait` (SDK-11): repeats the request with one token until the lock is granted or the time is over.
  #
  # The server keeps the wait queue and answers when the lock is granted. The client adds the following. It continues
  # over broken connections, restarts and a used-up quota. It only returns a lease whose deadline it knows: the lease
  # began at the grant, somewhere between the request and its response, so a late response is confirmed by a renewal. If
  # a lease cannot be confirmed, or expired before its response arrived, it is released and the wait continues with a
  # new token. However the wait ends, an interrupt included, it leaves neither a lease nor a queued waiter behind.
  #
  # Limit: a waiter that is absent for longer than the server allows loses its position (WAIT-6).
  class AcquireWait < Acquisition
    WAIT_SLICE_SECONDS = 50.0
    EARLY_FRACTION = 0.5
    FRESH_FRACTION = 1.0 / 3
    # A shorter remaining wait is below the resolution of the protocol, so no request is sent for it.
    REQUEST_SECONDS_MIN = 0.001

    # A lease was granted, but a renewal could not confirm it in time.
    class UnconfirmedError < TransportError
      def initialize(message, retry_after:, request_id:)
        super(message, request_id: request_id)
        @retry_after = retry_after
      end
    end
    private_constant :UnconfirmedError

    # @param wait_seconds [Float] may be infinite
    # @param stop [#call, nil] polled during the wait; `run` raises {Stopped} once it returns true
    def initialize(operations, sender, clock, wait_seconds:, stop: nil, **options)
      super(operations, sender, clock, **options)
      @wait_seconds = wait_seconds
      @stop = stop
      @request_sent = false
      @ended = false
      @early = false
      @backoff = Backoff.new
    end

    # @return [Lease]
    # @raise [LockHeldError] when the time is over, or the last failure, or any error that ends the wait at once
    def run
      @sender.pending_acquisitions.add(self)
      @until = @clock.now + @wait_seconds
      Log.debug { "waits up to #{@wait_seconds} seconds for the lock #{@key}" }
      lease = nil
      CallerActivity.during(@clock) { lease = try_once until lease }
      lease
    end

    private

    # After a regular end, a response said that the token holds nothing, and the server soon drops the absent waiter. A
    # wait that was interrupted has no such response.
    def release_needed?
      @uncertain || (@request_sent && !@ended)
    end

    def try_once
      lease = request_slice
      fresh?(lease) ? lease : confirm(lease)
    rescue VolcanoError => e
      delay = delay_after(e)
      if delay.nil?
        @ended = !@sender.closing?
        raise
      end
      change_token if e.is_a?(UnconfirmedError) || e.is_a?(LockOwnershipLostError)
      @sender.pause(delay, stop: @stop) if delay.positive?
      nil
    end

    # Send one request and return the lease it grants.
    def request_slice
      @sent_at = @clock.now
      wait_seconds = [WAIT_SLICE_SECONDS, [@until - @sent_at, 0.0].max].min
      @request_sent = true
      track_outcome(@sent_at) do
        response = @sender.send_request("POST", Operations.lease_path(@key),
                                        request_id: @request_id, token: @token, ttl_seconds: @ttl_seconds,
                                        wait_seconds: wait_seconds, stop: @stop,
                                        timeout_seconds: wait_seconds + @operations.timeout_seconds)
        @early = @clock.now - @sent_at < wait_seconds * EARLY_FRACTION
        lease_from(response, @sent_at + @ttl_seconds)
      end
    end

    def fresh?(lease)
      @clock.now - @sent_at <= lease.ttl_seconds * FRESH_FRACTION
    end

    # Renew the lease, so that its deadline counts from the renewal. The lease lasts at most its TTL from now.
    def confirm(lease)
      @operations.renew_until(lease, lease.ttl_seconds, @clock.now + lease.ttl_seconds)
    rescue VolcanoError => e
      raise if @sender.closing?

      message = "the lease of #{@key.inspect} was granted after a wait but could not be confirmed: #{e.message}"
      raise UnconfirmedError.new(message, retry_after: e.retry_after, request_id: e.request_id)
    end

    # Seconds before the next request; nil if `failure` ends the wait.
    def delay_after(failure)
      if failure.is_a?(LockHeldError)
        @backoff.reset unless @early
        delay = @early ? @backoff.seconds_after(failure) : 0.0
      elsif failure.is_a?(LockOwnershipLostError) && failure.request_id == @request_id && @uncertain
        delay = 0.0 # an earlier request was granted, its response was lost, and that lease has ended
      elsif Backoff.transient?(failure)
        delay = @backoff.seconds_after(failure)
      else
        return nil
      end
      @until - (@clock.now + delay) < REQUEST_SECONDS_MIN ? nil : delay
    end

    # Release what the token may hold, and continue with a new one: the old one may be retired.
    def change_token
      release(nil)
      @token = Arguments.new_uuid
      @uncertain = false
    end
  end
end
