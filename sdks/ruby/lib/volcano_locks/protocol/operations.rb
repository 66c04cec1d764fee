# frozen_string_literal: true

# What each operation does: check the arguments, send the request, retry if that is safe, and check the response.
#
# SDK-1: token and request id are made before the first send and stay the same in every retry.
# SDK-2: an acquire is sent at most twice; a refusal (4xx) is never retried.
module VolcanoLocks
  # The operations of one client.
  class Operations
    ATTEMPTS_MAX = 2
    ABANDON_SECONDS_MAX = 2.0
    RETRY_DELAY_SECONDS = 0.5
    RETRY_DELAY_SECONDS_MAX = 2.0

    # @return [Float] limit of one request
    attr_reader :timeout_seconds

    def initialize(sender, clock, timeout_seconds)
      @sender = sender
      @clock = clock
      @timeout_seconds = timeout_seconds
    end

    # @return [Boolean] whether half of the project's quota is spent, by the last response
    def quota_scarce?
      @sender.quota_scarce?
    end

    # @return [Acquisition] not started yet; an {AcquireWait} if `wait` is given
    def acquisition(key, ttl, token: nil, request_id: nil, wait: nil, stop: nil)
      wait_seconds = Arguments.checked_seconds("wait", wait)
      options = {
        key: Arguments.checked_key(key),
        token: token.nil? ? Arguments.new_uuid : Arguments.checked_uuid("token", token),
        ttl_seconds: Arguments.checked_ttl(ttl),
        request_id: Arguments.request_id_or_new(request_id)
      }
      return Acquisition.new(self, @sender, @clock, **options) if wait_seconds.zero?

      AcquireWait.new(self, @sender, @clock, wait_seconds: wait_seconds, stop: stop, **options)
    end

    # @return [Lease] the same lease with a new expiry; it keeps its fencing token and its owner token
    def renew(lease, ttl, request_id)
      ttl_seconds = Arguments.checked_ttl(ttl.nil? ? lease.ttl_seconds : ttl)
      id = Arguments.request_id_or_new(request_id)
      # Wait at most until the lease's deadline. After the deadline only the server knows whether the lease lives.
      alive = lease.deadline && lease.deadline > @clock.now
      renew_until(lease, ttl_seconds, alive ? lease.deadline : Float::INFINITY, request_id: id)
    end

    # @return [Lease] renewed to `ttl_seconds` before `until_`; with `must_finish`, closing the client waits for it
    def renew_until(lease, ttl_seconds, until_, request_id: Arguments.new_uuid, must_finish: false)
      with_retry(until_) do
        RenewalRequest.new(self, @sender, @clock, lease, ttl_seconds, request_id, seconds_left(until_))
                      .send_and_wait(must_finish: must_finish)
      end
    end

    # @return [RenewalRequest] a background renewal, sent once
    def start_renewal(lease, timeout_seconds, &on_over)
      id = Arguments.new_uuid
      RenewalRequest.new(self, @sender, @clock, lease, lease.ttl_seconds, id, timeout_seconds)
                    .tap { |renewal| renewal.start(&on_over) }
    end

    # Release by key and token, so that any lease object of the acquisition works (case 22).
    #
    # After an attempt that may have been served, "ownership lost" counts as success: the token holds no lease,
    # and another owner took the lock meanwhile (case 19).
    def release(lease, request_id, until_: Float::INFINITY)
      id = Arguments.request_id_or_new(request_id)
      uncertain = false
      with_retry(until_) do
        response = @sender.send_request("DELETE", Operations.lease_path(lease.key),
                                        request_id: id, token: lease.token, must_finish: true,
                                        timeout_seconds: seconds_left(until_))
        expect_status(response, 204, id)
        Log.debug { "released the lock #{lease.key}" }
      rescue LockOwnershipLostError => e
        raise unless uncertain && e.request_id == id
      rescue VolcanoError => e
        uncertain ||= Operations.may_have_been_served?(e)
        raise
      end
      nil
    end

    # Send a release whose caller was interrupted, maybe before it was sent; the release may arrive twice. Sends nothing
    # for bad arguments, which the caller gets as an error.
    def release_in_background(key, lease, request_id)
      Arguments.checked_lease(key, lease, "release(key, lease)")
      @sender.start_request("DELETE", Operations.lease_path(key), request_id: Arguments.request_id_or_new(request_id),
                                                                  token: lease.token, must_finish: true,
                                                                  timeout_seconds: @timeout_seconds)
    rescue ArgumentError, TypeError, VolcanoError, ThreadError # or the client is closed, or the process ends
      nil
    end

    # @return [LockState] whether an acquire would be refused, until when, and the fencing token
    def get(key, request_id)
      path = Operations.lock_path(Arguments.checked_key(key))
      id = Arguments.request_id_or_new(request_id)
      with_retry do
        response = @sender.send_request("GET", path, request_id: id, timeout_seconds: @timeout_seconds)
        Messages.state_from(expect_status(response, 200, id), request_id: id)
      end
    end

    # With a fencing token only from that lease. Without one, retried only if the request never left: a second one
    # could evict the next holder.
    def force_release(key, fencing_token, reason, request_id)
      token = Arguments.checked_fencing_token(fencing_token)
      path = Operations.lock_path(Arguments.checked_key(key))
      path += "/leases/#{token}" if token
      options = { request_id: Arguments.request_id_or_new(request_id), reason: Arguments.checked_reason(reason) }
      with_retry(only_if_unsent: token.nil?) do
        response = @sender.send_request("DELETE", path, timeout_seconds: @timeout_seconds, **options)
        expect_status(response, 204, options[:request_id])
      end
      nil
    end

    # @return [Lease] the lease that a response grants; its deadline counts from before the request (SDK-4)
    def granted_lease(response, status, key:, token:, ttl_seconds:, deadline:, request_id:)
      expect_status(response, status, request_id, key: status == 201 ? key : nil)
      lease = Messages.lease_from(response, key: key, token: token, ttl_seconds: ttl_seconds, deadline: deadline,
                                            request_id: request_id)
      Log.debug { "#{status == 201 ? 'acquired' : 'renewed'} #{lease.inspect}" }
      lease
    end

    # @return [Lease] the lease
    # @raise [LateResponseError] if it ended before its response arrived (case 14)
    def check_not_expired(lease, request_id)
      return lease if @clock.now < lease.deadline

      message = "the lease of #{lease.key.inspect} expired before its response arrived"
      raise LateResponseError.new(message, request_id: request_id)
    end

    # @return [Response] the response, if it has this status
    # @raise [VolcanoError] the error that it reports otherwise
    def expect_status(response, status, request_id, key: nil)
      return response if response.status == status

      raise Messages.error_from(response, request_id: request_id, key: key)
    end

    # Run the block. After a retryable failure run it once more, if that starts before `until_`.
    def with_retry(until_ = Float::INFINITY, only_if_unsent: false)
      attempt = 0
      begin
        attempt += 1
        yield
      rescue VolcanoError => e
        delay = Operations.retry_delay(e)
        again = Operations.retryable?(e) && !(only_if_unsent && Operations.may_have_been_served?(e))
        raise if attempt == ATTEMPTS_MAX || !again || @clock.now + delay >= until_

        @clock.pause(delay) if delay.positive?
        retry
      end
    end

    # The path of a lock's lease. A valid key needs no escaping.
    def self.lease_path(key)
      "/locks/#{key}/lease"
    end

    # The path of a lock.
    def self.lock_path(key)
      "/locks/#{key}"
    end

    # Whether the same request may succeed if it is sent again. An error without the id of a request is one that the
    # program raised into this thread.
    def self.retryable?(error)
      (error.is_a?(TransportError) || error.is_a?(UnavailableError)) && !error.is_a?(LateResponseError) &&
        !error.request_id.nil?
    end

    # Whether the server may have served the request despite the error.
    def self.may_have_been_served?(error)
      return error.request_sent? if error.is_a?(TransportError)

      error.is_a?(ServerError) || error.is_a?(RequestCancelledError) || error.status == 408
    end

    # Seconds before a retry: 0 after a broken connection, the server's bounded `Retry-After` after a 503.
    def self.retry_delay(error)
      return 0.0 unless error.is_a?(UnavailableError)

      [error.retry_after || RETRY_DELAY_SECONDS, RETRY_DELAY_SECONDS_MAX].min.to_f
    end

    private

    def seconds_left(until_)
      [@timeout_seconds, until_ - @clock.now].min
    end
  end
end
