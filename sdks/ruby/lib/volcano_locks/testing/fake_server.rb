# frozen_string_literal: true

require "uri"

module VolcanoLocks
  module Testing
    # A lock server in memory, under the test's clock.
    #
    # The client is the real one; this class replaces its transport. Any number of clients and threads may share one
    # `FakeLocks`. A waiting request waits on the clock, which another thread has to move.
    class FakeLocks
      include FakeLockJson

      URL = "http://fake.invalid"
      SERVICE_KEY = "sk-fake"

      # @return [ManualClock]
      attr_reader :clock

      def initialize(clock = nil)
        @clock = clock || ManualClock.new
        @mutex = Mutex.new
        @event_log = EventLog.new
        @locks = Hash.new do |locks, key|
          locks[key] = FakeLock.new(key) { |event| @event_log.publish(key, event.kind, event_json(key, event)) }
        end
      end

      # A client of these locks under this clock. Takes the options of {Client}.
      def client(**options)
        Client.new(api_url: URL, service_key: SERVICE_KEY, clock: @clock, transport: self, **options)
      end

      # The number of requests that wait for this lock, for a test that continues once a request waits.
      def waiters(key)
        synchronize { current_lock(key).waiters }
      end

      # The number of open event streams.
      def subscribers
        synchronize { @event_log.subscribers }
      end

      # Act as a node that restarts: waiters get 503, event streams end, and past events are forgotten.
      def restart
        synchronize do
          @locks.each_value(&:fail_waiters)
          @event_log.restart
        end
      end

      # Serve one request at the clock's time. A waiting request blocks.
      def call(request)
        key, ending, parameters = parts_of(request)
        body = request.body ? JSON.parse(request.body) : {}
        holder = request.headers["X-Volcano-Lock-Holder"]
        lease_request = FakeLock::LeaseRequest.new(request.token&.downcase, body["ttl_seconds"], holder)
        return acquire(key, lease_request, body.fetch("wait_seconds", 0)) if [request.verb, ending] == %w[POST lease]
        return synchronize { page(parameters) } if [request.verb, key] == ["GET", nil]

        synchronize { serve(request, ending, current_lock(key), lease_request, parameters) }
      end

      # Serve a request for an event stream: the block receives its text until the stream ends.
      def stream(request)
        wanted = key_filter(*parts_of(request))
        return call(request) if wanted.nil?

        subscriber, first = synchronize do
          @event_log.subscribe(request.headers["Last-Event-ID"], @clock.now, Messages.date_text(@clock.utc_now))
        end
        yield first
        send_events(subscriber, wanted) { |text| yield text } # rubocop:disable Style/ExplicitBlockArgument
        Response.new(200, { "content-type" => Watch::CONTENT_TYPE }, "")
      ensure
        synchronize { @event_log.unsubscribe(subscriber) } if subscriber
      end

      private

      # Interrupts are deferred, so that a cancelled request leaves a consistent state.
      def synchronize(&work)
        Thread.handle_interrupt(Object => :never) { @mutex.synchronize(&work) }
      end

      def current_lock(key)
        @locks[key].tap { |lock| lock.advance_to(@clock.now, utc_ms) }
      end

      def parts_of(request)
        path, query = request.path.split("?", 2)
        _, _, key, ending = path.split("/")
        [key, ending, URI.decode_www_form(query || "").to_h]
      end

      # Which keys an event stream reports; nil if the request is not for an event stream.
      def key_filter(key, ending, parameters)
        prefix = parameters["prefix"]
        return ->(other) { other.start_with?(prefix) } if key == "events" && ending.nil? && prefix

        ->(other) { other == key } if ending == "events"
      end

      def send_events(subscriber, wanted)
        until subscriber.ended
          text, due = synchronize do
            locks = @locks.keys.select(&wanted).map { |key| current_lock(key) }
            [@event_log.next_text(subscriber, @clock.now, &wanted), locks.map(&:due_at).min || Float::INFINITY]
          end
          if text.empty?
            @clock.wait([due, subscriber.comment_at].min, subscriber.signal)
          else
            yield text
          end
        end
      end

      def serve(request, ending, lock, lease_request, parameters)
        case [request.verb, ending]
        when %w[PATCH lease] then lock_response(lock, lock.renew(lease_request, @clock.now), 200)
        when %w[DELETE lease] then release_response(lock, lock.release(lease_request.token, @clock.now))
        when ["DELETE", nil], %w[DELETE leases] then release_response(lock, forced(lock, request))
        when %w[GET history] then history(lock, parameters)
        when ["GET", nil] then read(lock, parameters)
        else error_response(404, "not_found")
        end
      end

      # All entries on one page. Dates of one form compare like instants.
      def history(lock, parameters)
        since, before, at = parameters.values_at("from", "to", "at")
        items = lock.history.reverse.map { |hold| hold_json(lock.key, hold) }
        [since, at].compact.each { |bound| items.select! { |hold| (hold[:ended_at] || "~") > bound } }
        items.select! { |hold| hold[:began_at] < before } if before
        items.select! { |hold| hold[:began_at] <= at } if at
        json_response(200, { items: items, next_cursor: nil })
      end

      def forced(lock, request)
        reason = URI.decode_www_form_component(request.headers["X-Volcano-Reason"] || "")
        lock.force_release(@clock.now, request.path[%r{/leases/(\d+)\z}, 1]&.to_i, reason.empty? ? nil : reason)
      end

      def read(lock, parameters)
        return json_response(200, row_json(lock)) if parameters["view"] == "full"

        json_response(200, lock.owner ? { held: true, **lease_json(lock) } : { held: false })
      end

      def page(parameters)
        prefix, state, cursor = parameters.values_at("prefix", "state", "cursor")
        limit = parameters.fetch("limit", "100").to_i
        keys = @locks.keys.select { |key| key.start_with?(prefix.to_s) && key > cursor.to_s }.sort
        locks = keys.map { |key| current_lock(key) }.select { |lock| lock.fencing_token.positive? && lock.in?(state) }
        more = locks.length > limit
        json_response(200, { items: locks.first(limit).map { |lock| row_json(lock) },
                             next_cursor: more ? locks[limit - 1].key : nil })
      end

      # Hands the freed lock to the next waiter in the same step.
      def release_response(lock, error)
        current_lock(lock.key)
        lock_response(lock, error, 204)
      end

      def acquire(key, lease_request, wait_seconds)
        until_ = @clock.now + wait_seconds
        waiter = nil
        response = synchronize do
          lock = current_lock(key)
          error = lock.acquire(lease_request, @clock.now, utc_ms)
          next lock_response(lock, error, 201) if error != LOCK_HELD || wait_seconds.zero?

          waiter = lock.enqueue(lease_request, @clock.now)
          nil
        end
        response || wait_for_response(key, waiter, until_)
      ensure
        disconnect(key, waiter) if waiter && %i[queued resolved].include?(waiter.state)
      end

      def wait_for_response(key, waiter, until_)
        loop do
          response, due = synchronize do
            waiter.changed.clear
            lock = current_lock(key)
            [waiter_response(lock, waiter, until_), [until_, lock.due_at].min]
          end
          return response if response

          @clock.wait(due, waiter.changed)
        end
      end

      # @return [Response, nil] nil while the waiter is still queued
      def waiter_response(lock, waiter, until_)
        if waiter.state == :resolved
          waiter.state = :answered
          return lock_response(lock, waiter.error, 201)
        end
        return nil if @clock.now < until_

        lock.mark_absent(waiter, @clock.now)
        error_response(409, LOCK_HELD, lock)
      end

      def disconnect(key, waiter)
        synchronize do
          @locks[key].disconnect(waiter, @clock.now)
          current_lock(key)
        end
      end

      def lock_response(lock, error, status)
        return error_response(error == FakeLock::UNAVAILABLE ? 503 : 409, error, lock) if error

        status == 204 ? Response.new(204, {}, "") : json_response(status, lease_json(lock))
      end

      def error_response(status, code, lock = nil)
        body = { error: code.tr("_", " "), code: code, **(code == LOCK_HELD ? holder_json(lock) : {}) }
        json_response(status, body, status == 503 ? { "retry-after" => "1" } : {})
      end

      def json_response(status, body, headers = {})
        Response.new(status, { "content-type" => "application/json", **headers }, JSON.generate(body))
      end
    end

    # A {Client} with its own lock server in memory, or the given one.
    class FakeClient < Client
      # @return [FakeLocks]
      attr_reader :server
      # @return [ManualClock]
      attr_reader :clock

      def initialize(clock = nil, server: nil)
        @server = server || FakeLocks.new(clock)
        @clock = @server.clock
        super(api_url: FakeLocks::URL, service_key: FakeLocks::SERVICE_KEY, clock: @clock, transport: @server)
      end
    end
  end
end
