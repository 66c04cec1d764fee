# frozen_string_literal: true

require "uri"

module VolcanoLocks
  module Testing
    # The lease rules in memory, behind the same wire, under the test's clock.
    #
    # The client is the real one: what is faked is the server, at the transport. One `FakeLocks` may serve any number of
    # clients and threads. A request that waits does so on the clock, which somebody else has to move.
    class FakeLocks
      URL = "http://fake.invalid"
      SERVICE_KEY = "sk-fake"

      # @return [ManualClock]
      attr_reader :clock

      def initialize(clock = nil)
        @clock = clock || ManualClock.new
        @mutex = Mutex.new
        @locks = Hash.new { |locks, key| locks[key] = FakeLock.new(key) { |_happening| nil } }
      end

      # A client of these locks under this clock; options as for {Client}.
      def client(**options)
        Client.new(api_url: URL, service_key: SERVICE_KEY, clock: @clock, transport: self, **options)
      end

      # How many requests wait for this lock now: for a test that goes on when somebody waits.
      def waiters(key)
        guarded { looked_at(key).waiters }
      end

      # As when a node stops and starts again: who waits is answered 503 (WAIT-8).
      def restart
        guarded { @locks.each_value(&:turn_away) }
      end

      # Serve one request at the clock's instant; one that waits, as long as it waits.
      def call(request)
        path, query = request.path.split("?", 2)
        key, ending = path.delete_prefix("/locks/").split("/")
        body = request.body ? JSON.parse(request.body) : {}
        asked = FakeLock::Asked.new(request.token, body["ttl_seconds"], request.headers["X-Volcano-Lock-Holder"])
        return acquire(key, asked, body.fetch("wait_seconds", 0)) if [request.verb, ending] == %w[POST lease]

        guarded { at_once([request.verb, ending], looked_at(key), asked, URI.decode_www_form(query || "").to_h) }
      end

      private

      # A request that is cut off leaves nothing half done.
      def guarded(&work)
        Thread.handle_interrupt(Object => :never) { @mutex.synchronize(&work) }
      end

      def looked_at(key)
        @locks[key].tap { |lock| lock.look(@clock.now, utc_ms) }
      end

      def at_once(operation, lock, asked, _parameters)
        case operation
        when %w[PATCH lease] then told(lock, lock.renew(asked, @clock.now), 200)
        when %w[DELETE lease] then freed(lock, lock.release(asked.token, @clock.now))
        when ["DELETE", nil] then freed(lock, lock.force_release(@clock.now))
        when ["GET", nil] then answer(200, lock.owner ? { held: true, **term(lock) } : { held: false })
        else refused(404, "not_found")
        end
      end

      # In the same step the next in line has it.
      def freed(lock, refusal)
        looked_at(lock.key)
        told(lock, refusal, 204)
      end

      def acquire(key, asked, wait_seconds)
        until_ = @clock.now + wait_seconds
        place = nil
        answer = guarded do
          lock = looked_at(key)
          refusal = lock.acquire(asked, @clock.now, utc_ms)
          next told(lock, refusal, 201) if refusal != LOCK_HELD || wait_seconds.zero?

          place = lock.join(asked, @clock.now)
          nil
        end
        answer || waited(key, place, until_)
      ensure
        hang_up(key, place) if place && !place.heard
      end

      def waited(key, place, until_)
        loop do
          answer, due = guarded do
            place.changed.clear
            lock = looked_at(key)
            [answer_to(lock, place, until_), [until_, lock.due_at].min]
          end
          return answer if answer

          @clock.wait(due, place.changed)
        end
      end

      # nil while there is none.
      def answer_to(lock, place, until_)
        return nil unless place.settled || @clock.now >= until_

        place.heard = true
        return told(lock, place.refusal, 201) if place.settled

        lock.end_wait(place, @clock.now)
        refused(409, LOCK_HELD)
      end

      def hang_up(key, place)
        guarded do
          @locks[key].hung_up(place, @clock.now)
          looked_at(key)
        end
      end

      def told(lock, refusal, status)
        return refused(refusal == FakeLock::UNAVAILABLE ? 503 : 409, refusal) if refusal

        status == 204 ? Answer.new(204, {}, "") : answer(status, term(lock))
      end

      def term(lock)
        { expires_at: date(lock.expires_at), fencing_token: lock.fencing_token }
      end

      def date(instant)
        Messages.date_text(@clock.utc_now + Rational(((instant - @clock.now) * 1000).round, 1000))
      end

      def utc_ms
        (@clock.utc_now.to_r * 1000).to_i
      end

      def refused(status, code)
        answer(status, { error: code.tr("_", " "), code: code }, status == 503 ? { "retry-after" => "1" } : {})
      end

      def answer(status, body, headers = {})
        Answer.new(status, { "content-type" => "application/json", **headers }, JSON.generate(body))
      end
    end

    # A {Client} with a lock server of its own in memory, or the one given.
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
