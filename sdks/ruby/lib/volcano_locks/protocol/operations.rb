# frozen_string_literal: true

# What each verb does: its arguments checked, its request sent, tried again where that is right, its answer believed
# where it is one.
#
# SDK-1: token and request id are made before the first send and kept through every retry.
# SDK-2: an acquire is sent at most twice; a refusal (4xx) is an answer.
module VolcanoLocks
  # The verbs of one client, and what they share.
  class Flows
    ATTEMPTS_MAX = 2
    GIVE_UP_SECONDS_MAX = 2.0
    RETRY_PAUSE_SECONDS = 0.5
    RETRY_PAUSE_SECONDS_MAX = 2.0

    # @return [Float] the most one request may take
    attr_reader :timeout_seconds

    def initialize(courier, clock, timeout_seconds)
      @courier = courier
      @clock = clock
      @timeout_seconds = timeout_seconds
    end

    # @return [Acquisition] one that has not begun; with a `wait`, a {Wait}
    def acquisition(key, ttl, token: nil, request_id: nil, wait: nil, stop: nil)
      wait_seconds = Arguments.checked_seconds("wait", wait)
      options = {
        key: Arguments.checked_key(key),
        token: token.nil? ? Arguments.new_uuid : Arguments.checked_uuid("token", token),
        ttl_seconds: Arguments.checked_ttl(ttl),
        request_id: Arguments.request_id_or_new(request_id)
      }
      return Acquisition.new(self, @courier, @clock, **options) if wait_seconds.zero?

      Wait.new(self, @courier, @clock, wait_seconds: wait_seconds, stop: stop, **options)
    end

    # @return [Lease] the same lease with a new expiry; it keeps its fencing token and its owner token
    def renew(lease, ttl, request_id)
      ttl_seconds = Arguments.checked_ttl(ttl.nil? ? lease.ttl_seconds : ttl)
      id = Arguments.request_id_or_new(request_id)
      # A renewal is worth waiting for until the lease's deadline; past it only the server can tell.
      alive = lease.deadline && lease.deadline > @clock.now
      until_ = alive ? lease.deadline : Float::INFINITY
      retried(until_) { Renewal.new(self, @courier, @clock, lease, ttl_seconds, id, left(until_)).wait }
    end

    # @return [Lease] renewed to `ttl_seconds`, if that can be had before `until_`; if it is to be carried `to_the_end`,
    #   closing the client does not cut it short
    def renew_until(lease, ttl_seconds, until_, to_the_end: false)
      id = Arguments.new_uuid
      retried(until_) do
        Renewal.new(self, @courier, @clock, lease, ttl_seconds, id, left(until_)).wait(to_the_end: to_the_end)
      end
    end

    # @return [Renewal] one of the background: it is sent once, and nobody waits for it
    def begin_renewal(lease, timeout_seconds, &on_over)
      id = Arguments.new_uuid
      renewal = Renewal.new(self, @courier, @clock, lease, lease.ttl_seconds, id, timeout_seconds)
      renewal.begin(&on_over)
      renewal
    end

    # By key and token alone, so that any lease object of the acquisition will do (case 22).
    #
    # If an earlier attempt may have been served, "not yours" is what its success looks like after somebody else took
    # the lock: the token holds nothing any more, which is all that was asked (case 19).
    def release(lease, request_id, until_: Float::INFINITY)
      id = Arguments.request_id_or_new(request_id)
      uncertain = false
      retried(until_) do
        answer = @courier.ask("DELETE", Flows.lease_path(lease.key), request_id: id, token: lease.token,
                                                                     timeout_seconds: left(until_), to_the_end: true)
        expect(answer, 204, id)
      rescue LockOwnershipLostError
        raise unless uncertain
      rescue VolcanoError => e
        uncertain ||= Flows.may_have_been_served?(e)
        raise
      end
      nil
    end

    # @return [LockState] whether an acquire would be refused, until when it says so, and the fencing token
    def get(key, request_id)
      path = Flows.lock_path(Arguments.checked_key(key))
      id = Arguments.request_id_or_new(request_id)
      retried do
        answer = @courier.ask("GET", path, request_id: id, timeout_seconds: @timeout_seconds)
        Messages.state_from(expect(answer, 200, id), request_id: id)
      end
    end

    # Sent again only if it never left: a second one could evict the next holder.
    def force_release(key, request_id)
      path = Flows.lock_path(Arguments.checked_key(key))
      id = Arguments.request_id_or_new(request_id)
      retried(only_if_unsent: true) do
        expect(@courier.ask("DELETE", path, request_id: id, timeout_seconds: @timeout_seconds), 204, id)
      end
      nil
    end

    # @return [Lease] what an answer granted, counted from before its request was sent (SDK-4)
    def granted(answer, status, key:, token:, ttl_seconds:, deadline:, request_id:)
      Messages.lease_from(expect(answer, status, request_id), key: key, token: token, ttl_seconds: ttl_seconds,
                                                              deadline: deadline, request_id: request_id)
    end

    # @return [Lease] the lease
    # @raise [LateAnswerError] when it came after the time it granted (case 14)
    def in_time(lease, request_id)
      return lease if @clock.now < lease.deadline

      late = "the lease of #{lease.key.inspect} had run out before the answer that granted it came"
      raise LateAnswerError.new(late, request_id: request_id)
    end

    # @return [Answer] the answer, if it has this status
    # @raise [VolcanoError] what it says, if it has another
    def expect(answer, status, request_id)
      return answer if answer.status == status

      raise Messages.refusal_from(answer, request_id: request_id)
    end

    # What the block returns; after a failure that is worth it, once more, if `until_` leaves time for it.
    def retried(until_ = Float::INFINITY, only_if_unsent: false)
      attempt = 0
      begin
        attempt += 1
        yield
      rescue VolcanoError => e
        pause = Flows.pause_after(e)
        again = Flows.worth_another_try?(e) && !(only_if_unsent && Flows.may_have_been_served?(e))
        raise if attempt == ATTEMPTS_MAX || !again || @clock.now + pause >= until_

        @clock.pause(pause) if pause.positive?
        retry
      end
    end

    # The address of a lock's lease; a valid key needs no escaping.
    def self.lease_path(key)
      "/locks/#{key}/lease"
    end

    # The address of a lock.
    def self.lock_path(key)
      "/locks/#{key}"
    end

    # Whether the same request may well succeed when it is sent again.
    def self.worth_another_try?(error)
      (error.is_a?(TransportError) || error.is_a?(UnavailableError)) && !error.is_a?(LateAnswerError)
    end

    # Whether the server may have done what was asked in spite of the error.
    def self.may_have_been_served?(error)
      return error.request_sent? if error.is_a?(TransportError)

      error.is_a?(ServerError) || error.is_a?(CutShortError) || error.status == 408
    end

    # Seconds: a broken connection is tried anew at once; a server that asks for time gets some.
    def self.pause_after(error)
      return 0.0 unless error.is_a?(UnavailableError)

      [error.retry_after || RETRY_PAUSE_SECONDS, RETRY_PAUSE_SECONDS_MAX].min.to_f
    end

    private

    def left(until_)
      [@timeout_seconds, until_ - @clock.now].min
    end
  end

  # One renewal, sent once.
  class Renewal
    def initialize(flows, courier, clock, lease, ttl_seconds, request_id, timeout_seconds)
      @flows = flows
      @courier = courier
      @lease = lease
      @ttl_seconds = ttl_seconds
      @deadline = clock.now + ttl_seconds
      @request_id = request_id
      @timeout_seconds = timeout_seconds
    end

    # @return [Lease] send it, and wait
    def wait(to_the_end: false)
      granted(@courier.ask("PATCH", Flows.lease_path(@lease.key), to_the_end: to_the_end, **options))
    end

    # Send it. The block is told, in another thread, that it is over.
    def begin(&on_over)
      @call = @courier.send_off("PATCH", Flows.lease_path(@lease.key), **options, &on_over)
    end

    # @return [Boolean] whether `lease` has something to say
    def over?
      @call.done? || @call.late?
    end

    # @return [Float] when `over?` is true at the latest
    def until
      @call.until
    end

    # @return [Lease] the newest
    # @raise [VolcanoError] why there is none
    def lease
      @call.drop
      granted(@courier.answer_of(@call))
    end

    # Nobody is interested any more.
    def drop
      @call.drop
    end

    # Let it come to its end, for at most `seconds` of real time; then drop it.
    def end_within(seconds)
      @call.signal.sleep(seconds) { false } unless @call.done?
      drop
    end

    private

    def options
      { request_id: @request_id, token: @lease.token, ttl_seconds: @ttl_seconds, timeout_seconds: @timeout_seconds }
    end

    def granted(answer)
      lease = @flows.granted(answer, 200, key: @lease.key, token: @lease.token, ttl_seconds: @ttl_seconds,
                                          deadline: @deadline, request_id: @request_id)
      @flows.in_time(lease, @request_id)
    end
  end
end
