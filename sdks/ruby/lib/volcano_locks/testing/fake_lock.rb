# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # One lock of the fake: the LEASE rules and the wait queue (WAIT rules), without HTTP or a clock.
    #
    # Instants are in seconds. An operation returns nil if it succeeded, otherwise the error code. Not thread-safe:
    # {FakeLocks} synchronizes.
    class FakeLock
      MARGIN_SECONDS = 1.0
      GRACE_SECONDS = 1.0
      ABSENCE_SECONDS_MAX = 5.0
      UNAVAILABLE = "lock_service_unavailable"
      LOCK_CHANGED = "lock_changed"

      # A request for a lease.
      LeaseRequest = Struct.new(:token, :ttl_seconds, :holder)
      # One published change of the lock.
      LockEvent = Struct.new(:kind, :fencing_token, :holder, :at, :why, :expires_at, :reason)

      # One hold of the history. Instants are in seconds; `ended_at` is nil while it lasts.
      Hold = Struct.new(:fencing_token, :holder, :began, :began_at, :expires_at, :renewals, :renewed_at, :ended,
                        :ended_at, :reason)

      # One queued acquire. Its `state` is
      #
      # - `:queued`: its request waits;
      # - `:absent`: its request timed out; its position is kept until `kept_until`;
      # - `:resolved`: its request can be answered, with the error code `error` or, if that is nil, the lease;
      # - `:answered`: its request was answered.
      Waiter = Struct.new(:request, :state, :changed, :kept_until, :error) do
        # Wake its request to be answered.
        def resolve(error)
          self.state = :resolved if state == :queued
          self.error = error
          changed.set
        end
      end

      # @return [Array<Hold>] the oldest first
      attr_reader :history
      attr_reader :key, :owner, :holder, :ttl_seconds, :fencing_token, :acquired_at, :renewed_at, :expires_at

      # The block receives each {LockEvent}.
      def initialize(key, &on_event)
        @key = key
        @on_event = on_event
        @fencing_token = 0
        @owner = @expired_owner = @holder = nil
        @ttl_seconds = 0
        @acquired_at = @renewed_at = @expires_at = @deadline = 0.0
        @retired = []
        @queue = []
        @history = []
      end

      # The number of requests that wait.
      def waiters
        @queue.count { |waiter| waiter.state == :queued }
      end

      # Whether the lock is in this state, `held` or `free`. Any other value matches every lock.
      def in?(state)
        !%w[held free].include?(state) || (state == "held") == !@owner.nil?
      end

      # When another owner may take over the current lease.
      def takeover_at
        @expires_at + GRACE_SECONDS
      end

      # The next instant at which `advance_to` has something to do.
      def due_at
        kept = @queue.filter_map(&:kept_until)
        (@owner ? kept + [takeover_at] : kept).min || Float::INFINITY
      end

      # Do what is due: end an expired lease after its grace, drop waiters that were absent for too long, and grant the
      # lock to the next waiter.
      def advance_to(now, utc_ms)
        expire(takeover_at) if @owner && now >= takeover_at
        gone, @queue = @queue.partition { |waiter| waiter.kept_until && waiter.kept_until <= now }
        gone.each { |waiter| publish("gave_up", nil, waiter.request.holder, now, "left") }
        nil while resolve_first_waiter(now, utc_ms)
      end

      # Acquire without waiting. Call `advance_to` first, so that waiters get the lock before this request.
      def acquire(request, now, utc_ms)
        error = evaluate(request, now, utc_ms, @expired_owner ? "taken_over" : "free")
        @queue.delete_if { |one| one.state == :absent && one.request.token == request.token } unless error == LOCK_HELD
        error
      end

      # Add a waiter to the end of the queue, or replace the one with this token (WAIT-6).
      def enqueue(request, now)
        waiter = Waiter.new(request, :queued, Signal.new)
        index = @queue.index { |other| other.request.token == request.token }
        if index
          @queue[index].resolve(LOCK_HELD)
          @queue[index] = waiter
        else
          @queue << waiter
          publish("waiting", nil, request.holder, now, "held")
        end
        waiter
      end

      # The request timed out: keep the waiter's position for a while.
      def mark_absent(waiter, now)
        waiter.state = :absent
        waiter.kept_until = now + ABSENCE_SECONDS_MAX
      end

      # The request was disconnected: remove the waiter, or revoke its undelivered grant, which retires nothing
      # (WAIT-5).
      def disconnect(waiter, now)
        if @queue.any? { |other| other.equal?(waiter) }
          @queue.delete_if { |other| other.equal?(waiter) }
          publish("gave_up", nil, waiter.request.holder, now, "left")
        elsif waiter.state == :resolved && waiter.error.nil? && @owner == waiter.request.token
          publish("released", @fencing_token, @holder, now, "given_back")
          end_hold("released", now)
          @owner = nil
        end
      end

      # Renew the lease. Only its owner can, and only before the margin.
      def renew(request, now, why = "renewed")
        return LOCK_OWNERSHIP_LOST if @owner != request.token || now >= @expires_at - MARGIN_SECONDS

        set_lease(request, now)
        @history.last.renewals += 1
        @history.last.renewed_at = now
        @queue.each { |waiter| waiter.changed.set } # a shorter lease expires sooner than they expect
        publish("renewed", @fencing_token, @holder, now, why, @expires_at)
      end

      # Release the lock, by its owner or if it is free. A waiter with this token leaves the queue (WAIT-5).
      def release(token, now)
        waiting, @queue = @queue.partition { |waiter| waiter.request.token == token }
        waiting.each do |waiter|
          waiter.resolve(LOCK_OWNERSHIP_LOST)
          publish("gave_up", nil, waiter.request.holder, now, "left")
        end
        return LOCK_OWNERSHIP_LOST unless [nil, token].include?(@owner)

        free("released", "released", now, token)
      end

      # Free the lock, regardless of its owner; with a fencing token only from that lease.
      def force_release(now, fencing_token, reason)
        return LOCK_CHANGED unless [nil, @fencing_token].include?(fencing_token)

        free("force_released", "forced", now, @owner || @expired_owner, reason)
      end

      # The server stops: all waiters get 503 (WAIT-8).
      def fail_waiters
        @queue.slice!(0..).each { |waiter| waiter.resolve(UNAVAILABLE) }
      end

      private

      # @return [Boolean] whether a waiter left the queue
      def resolve_first_waiter(now, utc_ms)
        waiter = @queue.find { |one| one.state == :queued }
        return false if waiter.nil? || (error = evaluate(waiter.request, now, utc_ms, "waited")) == LOCK_HELD

        publish("gave_up", nil, waiter.request.holder, now, "refused") if error
        @queue.delete_if { |other| other.equal?(waiter) }
        waiter.resolve(error)
        true
      end

      def evaluate(request, now, utc_ms, why)
        return renew(request, now, "repeated") if @owner == request.token
        return LOCK_HELD if @owner
        return LOCK_OWNERSHIP_LOST if @retired.include?(request.token)

        @owner = request.token
        @expired_owner = nil
        @retired = []
        @acquired_at = now
        @deadline = now + Arguments::TTL_SECONDS_MAX
        @fencing_token = [@fencing_token + 1, utc_ms].max
        @history << Hold.new(@fencing_token, request.holder, why, now, now, 0)
        set_lease(request, now)
        publish("acquired", @fencing_token, @holder, now, why, @expires_at)
      end

      def set_lease(request, now)
        @renewed_at = now
        @ttl_seconds = request.ttl_seconds
        @holder = request.holder
        @expires_at = @history.last.expires_at = [now + request.ttl_seconds, @deadline].min
      end

      # Keeps the owner, because a later release or force release retires it.
      def expire(at)
        @expired_owner = @owner
        @owner = nil
        end_hold("expired", at)
        publish("expired", @fencing_token, @holder, at, "not_renewed")
      end

      def free(kind, why, now, retired, reason = nil)
        if @owner
          publish(kind, @fencing_token, @holder, now, why, nil, reason)
          end_hold(why, now, reason)
        end
        @owner = nil
        @retired << retired if retired
        nil
      end

      def end_hold(ended, at, reason = nil)
        hold = @history.last
        hold.ended = ended
        hold.ended_at = at
        hold.reason = reason
      end

      def publish(*event)
        @on_event.call(LockEvent.new(*event))
        nil
      end
    end
  end
end
