# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # The lease rules in memory, behind the same wire, under the test's clock.
    #
    # The client is the real one: what is faked is the server, at the transport. One `FakeLocks` may serve any number of
    # clients and threads.
    class FakeLocks
      MARGIN_SECONDS = 1.0
      GRACE_SECONDS = 1.0
      URL = "http://fake.invalid"
      SERVICE_KEY = "sk-fake"

      # What is remembered of a lock. `owner` is nil while it is free.
      Lock = Struct.new(:fencing_token, :owner, :expires_at, :deadline, :retired)
      private_constant :Lock

      # @return [ManualClock]
      attr_reader :clock

      def initialize(clock = nil)
        @clock = clock || ManualClock.new
        @mutex = Mutex.new
        @locks = Hash.new { |locks, key| locks[key] = Lock.new(0, nil, 0.0, 0.0, []) }
      end

      # A client of these locks under this clock; options as for {Client}.
      def client(**options)
        Client.new(api_url: URL, service_key: SERVICE_KEY, clock: @clock, transport: self, **options)
      end

      # Serve one request at the clock's instant.
      def call(request)
        _, _, key, ending = request.path.split("/")
        ttl = request.body ? JSON.parse(request.body).fetch("ttl_seconds") : 0
        @mutex.synchronize do
          serve(@locks[key], [request.verb, ending], request.token, ttl)
        end
      end

      private

      def serve(lock, asked, token, ttl)
        case asked
        when %w[POST lease] then acquire(lock, token, ttl)
        when %w[PATCH lease] then renew(lock, token, ttl, 200)
        when %w[DELETE lease] then release(lock, token)
        when ["GET", nil] then read(lock)
        when ["DELETE", nil] then free(lock, lock.owner)
        else refused(404, "not_found")
        end
      end

      # Whether nobody may take it over yet. One that lapsed keeps its owner, whom a release or force release retires.
      def held?(lock)
        !lock.owner.nil? && @clock.now < lock.expires_at + GRACE_SECONDS
      end

      def acquire(lock, token, ttl)
        return lock.owner == token ? renew(lock, token, ttl, 201) : refused(409, LOCK_HELD) if held?(lock)
        return refused(409, LOCK_OWNERSHIP_LOST) if lock.retired.include?(token)

        lock.owner = token
        lock.retired = []
        lock.deadline = @clock.now + Arguments::TTL_SECONDS_MAX
        lock.fencing_token = [lock.fencing_token + 1, (@clock.utc_now.to_r * 1000).to_i].max
        granted(lock, ttl, 201)
      end

      def renew(lock, token, ttl, status)
        if lock.owner != token || @clock.now >= lock.expires_at - MARGIN_SECONDS
          return refused(409, LOCK_OWNERSHIP_LOST)
        end

        granted(lock, ttl, status)
      end

      def release(lock, token)
        return refused(409, LOCK_OWNERSHIP_LOST) if held?(lock) && lock.owner != token

        free(lock, token)
      end

      def free(lock, retired)
        lock.owner = nil
        lock.retired << retired if retired
        Answer.new(204, {}, "")
      end

      def granted(lock, ttl, status)
        lock.expires_at = [@clock.now + ttl, lock.deadline].min
        answer(status, term(lock))
      end

      def read(lock)
        answer(200, held?(lock) ? { held: true, **term(lock) } : { held: false })
      end

      def term(lock)
        left = Rational(((lock.expires_at - @clock.now) * 1000).round, 1000)
        { expires_at: Messages.date_text(@clock.utc_now + left), fencing_token: lock.fencing_token }
      end

      def refused(status, code)
        answer(status, { error: code.tr("_", " "), code: code })
      end

      def answer(status, body)
        Answer.new(status, { "content-type" => "application/json" }, JSON.generate(body))
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
