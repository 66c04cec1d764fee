# frozen_string_literal: true

require "uri"

module VolcanoLocks
  module Testing
    # The lease rules in memory, behind the same wire, under the test's clock.
    #
    # The client is the real one: what is faked is the server, at the transport. One `FakeLocks` may serve any number of
    # clients and threads. A request that waits does so on the clock, which somebody else has to move.
    class FakeLocks
      include Shown

      URL = "http://fake.invalid"
      SERVICE_KEY = "sk-fake"

      # @return [ManualClock]
      attr_reader :clock

      def initialize(clock = nil)
        @clock = clock || ManualClock.new
        @mutex = Mutex.new
        @stories = Stories.new
        @locks = Hash.new do |locks, key|
          locks[key] = FakeLock.new(key) { |happening| @stories.tell(key, happening.kind, body_of(key, happening)) }
        end
      end

      # A client of these locks under this clock; options as for {Client}.
      def client(**options)
        Client.new(api_url: URL, service_key: SERVICE_KEY, clock: @clock, transport: self, **options)
      end

      # How many requests wait for this lock now: for a test that goes on when somebody waits.
      def waiters(key)
        guarded { looked_at(key).waiters }
      end

      # How many event streams are heard now.
      def hearers
        guarded { @stories.hearers }
      end

      # As when a node stops and starts again: who waits is answered 503 (WAIT-8), event streams end, and what was told
      # is forgotten.
      def restart
        guarded do
          @locks.each_value(&:turn_away)
          @stories.restart
        end
      end

      # Serve one request at the clock's instant; one that waits, as long as it waits.
      def call(request)
        key, ending, parameters = parts_of(request)
        body = request.body ? JSON.parse(request.body) : {}
        holder = request.headers["X-Volcano-Lock-Holder"]
        asked = FakeLock::Asked.new(request.token&.downcase, body["ttl_seconds"], holder)
        return acquire(key, asked, body.fetch("wait_seconds", 0)) if [request.verb, ending] == %w[POST lease]
        return guarded { page(parameters) } if [request.verb, key] == ["GET", nil]

        guarded { at_once([request.verb, ending], looked_at(key), asked, parameters) }
      end

      # Serve a request for an event stream: the block is given what is told, for as long as it is heard.
      def stream(request)
        wanted = wanted_by(*parts_of(request))
        return call(request) if wanted.nil?

        hearer, first = guarded do
          @stories.join(request.headers["Last-Event-ID"], @clock.now, Messages.date_text(@clock.utc_now))
        end
        yield first
        tell_on(hearer, wanted) { |text| yield text } # rubocop:disable Style/ExplicitBlockArgument
        Answer.new(200, { "content-type" => Watch::CONTENT_TYPE }, "")
      ensure
        guarded { @stories.leave(hearer) } if hearer
      end

      private

      # A request that is cut off leaves nothing half done.
      def guarded(&work)
        Thread.handle_interrupt(Object => :never) { @mutex.synchronize(&work) }
      end

      def looked_at(key)
        @locks[key].tap { |lock| lock.look(@clock.now, utc_ms) }
      end

      def parts_of(request)
        path, query = request.path.split("?", 2)
        _, _, key, ending = path.split("/")
        [key, ending, URI.decode_www_form(query || "").to_h]
      end

      # Which keys an event stream is about; nil if it is none that was asked for.
      def wanted_by(key, ending, parameters)
        prefix = parameters["prefix"]
        return ->(told) { told.start_with?(prefix) } if key == "events" && ending.nil? && prefix

        ->(told) { told == key } if ending == "events"
      end

      def tell_on(hearer, wanted)
        until hearer.ended
          text, due = guarded do
            locks = @locks.keys.select(&wanted).map { |key| looked_at(key) }
            [@stories.news(hearer, @clock.now, &wanted), locks.map(&:due_at).min || Float::INFINITY]
          end
          if text.empty?
            @clock.wait([due, hearer.comment_at].min, hearer.signal)
          else
            yield text
          end
        end
      end

      def at_once(operation, lock, asked, parameters)
        case operation
        when %w[PATCH lease] then told(lock, lock.renew(asked, @clock.now), 200)
        when %w[DELETE lease] then freed(lock, lock.release(asked.token, @clock.now))
        when ["DELETE", nil] then freed(lock, lock.force_release(@clock.now))
        when ["GET", nil] then read(lock, parameters)
        else refused(404, "not_found")
        end
      end

      def read(lock, parameters)
        return answer(200, row(lock)) if parameters["view"] == "full"

        answer(200, lock.owner ? { held: true, **term(lock) } : { held: false })
      end

      def page(parameters)
        prefix, state, cursor = parameters.values_at("prefix", "state", "cursor")
        limit = parameters.fetch("limit", "100").to_i
        keys = @locks.keys.select { |key| key.start_with?(prefix.to_s) && key > cursor.to_s }.sort
        locks = keys.map { |key| looked_at(key) }.select { |lock| lock.fencing_token.positive? && lock.in?(state) }
        more = locks.length > limit
        answer(200, { items: locks.first(limit).map { |lock| row(lock) },
                      next_cursor: more ? locks[limit - 1].key : nil })
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
