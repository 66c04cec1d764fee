# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # One lock of the fake: the LEASE rules and the line of those who wait (WAIT rules), without HTTP or a clock.
    #
    # Instants are seconds. A verb gives nil when it succeeded, else the code of its refusal. Nothing here is guarded:
    # {FakeLocks} does that.
    class FakeLock
      MARGIN_SECONDS = 1.0
      GRACE_SECONDS = 1.0
      PLACE_KEPT_SECONDS = 5.0
      UNAVAILABLE = "lock_service_unavailable"

      # Who asks for a lease.
      Asked = Struct.new(:token, :ttl_seconds, :holder)
      # What became of the lock, for those who watch.
      Happening = Struct.new(:kind, :fencing_token, :holder, :at, :why, :expires_at)

      # A place in the line. Once `settled`, `refusal` is what its request is told, nil for the lease.
      Place = Struct.new(:asked, :changed, :kept_until, :settled, :refusal, :heard) do
        # Tell its request.
        def settle(refusal)
          self.settled = true
          self.refusal = refusal
          changed.set
        end
      end

      attr_reader :key, :owner, :holder, :ttl_seconds, :fencing_token, :acquired_at, :renewed_at, :expires_at

      # The block is told each {Happening}.
      def initialize(key, &tell)
        @key = key
        @tell = tell
        @fencing_token = 0
        @owner = @lapsed_owner = @holder = nil
        @ttl_seconds = 0
        @acquired_at = @renewed_at = @expires_at = @deadline = 0.0
        @retired = []
        @line = []
      end

      # How many requests wait.
      def waiters
        @line.count { |place| place.kept_until.nil? }
      end

      # Whether it is in this state: `held`, `free`, or any other for all.
      def in?(state)
        !%w[held free].include?(state) || (state == "held") == !@owner.nil?
      end

      # When anybody may take over the lease there is.
      def over_at
        @expires_at + GRACE_SECONDS
      end

      # The next instant at which something happens by itself.
      def due_at
        kept = @line.filter_map(&:kept_until)
        (@owner ? kept + [over_at] : kept).min || Float::INFINITY
      end

      # Do what is due: end the lease whose grace is over and the places that were kept long enough, and serve the line.
      def look(now, utc_ms)
        lapse(over_at) if @owner && now >= over_at
        gone, @line = @line.partition { |place| place.kept_until && place.kept_until <= now }
        gone.each { |place| tell("gave_up", nil, place.asked.holder, now, "left") }
        nil while serve_first(now, utc_ms)
      end

      # Without waiting. Those who wait come first: see `look`.
      def acquire(asked, now, utc_ms)
        refusal = judged(asked, now, utc_ms, @lapsed_owner ? "taken_over" : "free")
        @line.delete_if { |place| place.kept_until && place.asked.token == asked.token } unless refusal == LOCK_HELD
        refusal
      end

      # A place at the end of the line, or the one that this token has (WAIT-6).
      def join(asked, now)
        place = Place.new(asked, Signal.new)
        index = @line.index { |other| other.asked.token == asked.token }
        if index
          @line[index].settle(LOCK_HELD)
          @line[index] = place
        else
          @line << place
          tell("waiting", nil, asked.holder, now, "held")
        end
        place
      end

      # Its time is up: the place is kept for a while.
      def end_wait(place, now)
        place.kept_until = now + PLACE_KEPT_SECONDS
      end

      # Its request was hung up: it loses the place, or gives back what it was granted, which retires nothing (WAIT-5).
      def hung_up(place, now)
        if @line.any? { |other| other.equal?(place) }
          @line.delete_if { |other| other.equal?(place) }
          tell("gave_up", nil, place.asked.holder, now, "left")
        elsif place.settled && place.refusal.nil? && @owner == place.asked.token
          tell("released", @fencing_token, @holder, now, "given_back")
          @owner = nil
        end
      end

      # By the owner, before the margin.
      def renew(asked, now, why = "renewed")
        return LOCK_OWNERSHIP_LOST if @owner != asked.token || now >= @expires_at - MARGIN_SECONDS

        set(asked, now)
        @line.each { |place| place.changed.set } # a shorter lease ends sooner than they know
        tell("renewed", @fencing_token, @holder, now, why, @expires_at)
      end

      # By the owner, or of a free lock; of one who waits, it leaves the line (WAIT-5).
      def release(token, now)
        waiting, @line = @line.partition { |place| place.asked.token == token }
        waiting.each do |place|
          place.settle(LOCK_OWNERSHIP_LOST)
          tell("gave_up", nil, place.asked.holder, now, "left")
        end
        return LOCK_OWNERSHIP_LOST unless [nil, token].include?(@owner)

        free("released", "released", now, token)
      end

      # Whoever has it.
      def force_release(now)
        free("force_released", "forced", now, @owner || @lapsed_owner)
      end

      # Answer all who wait that they go on elsewhere (WAIT-8).
      def turn_away
        @line.slice!(0..).each { |place| place.settle(UNAVAILABLE) }
      end

      private

      # Whether it has left the line.
      def serve_first(now, utc_ms)
        place = @line.find { |one| one.kept_until.nil? }
        return false if place.nil? || (refusal = judged(place.asked, now, utc_ms, "waited")) == LOCK_HELD

        tell("gave_up", nil, place.asked.holder, now, "refused") if refusal
        @line.delete_if { |other| other.equal?(place) }
        place.settle(refusal)
        true
      end

      def judged(asked, now, utc_ms, why)
        return renew(asked, now, "repeated") if @owner == asked.token
        return LOCK_HELD if @owner
        return LOCK_OWNERSHIP_LOST if @retired.include?(asked.token)

        @owner = asked.token
        @lapsed_owner = nil
        @retired = []
        @acquired_at = now
        @deadline = now + Arguments::TTL_SECONDS_MAX
        @fencing_token = [@fencing_token + 1, utc_ms].max
        set(asked, now)
        tell("acquired", @fencing_token, @holder, now, why, @expires_at)
      end

      def set(asked, now)
        @renewed_at = now
        @ttl_seconds = asked.ttl_seconds
        @holder = asked.holder
        @expires_at = [now + asked.ttl_seconds, @deadline].min
      end

      # Its owner is remembered, whom a release or force release retires.
      def lapse(at)
        @lapsed_owner = @owner
        @owner = nil
        tell("expired", @fencing_token, @holder, at, "not_renewed")
      end

      def free(kind, why, now, retired)
        tell(kind, @fencing_token, @holder, now, why) if @owner
        @owner = nil
        @retired << retired if retired
        nil
      end

      def tell(*happening)
        @tell.call(Happening.new(*happening))
        nil
      end
    end
  end
end
