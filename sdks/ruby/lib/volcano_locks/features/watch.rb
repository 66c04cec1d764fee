# frozen_string_literal: true

# Following who holds a lock: its event stream and, where that may have gaps, a look at the lock itself (SDK-14).
#
# Looks and events overlap and may tell the same twice, or old things late: a look begins after its stream did, and a
# stream that was resumed tells first what was missed. {Leadings} puts both in order by the fencing token, which rises
# with each change of hands.
#
# Not promised: every change. Two that follow each other while the client is cut off may be seen as one, or not at all;
# what is told last is so.
module VolcanoLocks
  # Who holds a lock. Two are equal if both are free, or both held with the same fencing token.
  class Leadership
    include Value

    SHOWN = %i[held holder fencing_token since].freeze

    # @return [Boolean] whether the lock is held
    attr_reader :held
    alias held? held
    # @return [String, nil] the label of who holds it
    attr_reader :holder
    # @return [Integer, nil] of the lease; nil while the lock is free
    attr_reader :fencing_token
    # @return [Time, nil] when the lease was acquired, or when the lock became free, if that is known
    attr_reader :since

    def initialize(held:, holder: nil, fencing_token: nil, since: nil)
      @held = held
      @holder = holder
      @fencing_token = fencing_token
      @since = since
      freeze
    end

    protected

    # What tells two leaderships apart (SDK-14).
    def identity
      [held, fencing_token]
    end
  end

  # What is known of one lock, from looks and events in whatever order they come.
  class Leadings
    BEGINS = %w[acquired renewed].freeze
    ENDS = %w[released expired force_released].freeze

    # @return [Leadership, nil]
    attr_reader :latest

    def initialize
      @latest = nil
      @newest = 0
      @ended = 0
    end

    # What a look at the lock says: so it is, but for a lease that is known to have ended since.
    def looked(view)
      token = view.fencing_token || @newest
      return begin_lease(token, view.holder, view.acquired_at) if view.held? && token > @ended

      end_lease([token, @ended].max, nil)
    end

    # What an event says, unless more is known by now. What is no such event says nothing.
    def happened(event)
      body = event.body
      token = body["fencing_token"]
      return unless Arguments.safe_integer?(token)

      if BEGINS.include?(event.kind) && token > @newest
        began_at = event.kind == "acquired" ? at(body) : nil
        begin_lease(token, body["holder"].is_a?(String) ? body["holder"] : nil, began_at)
      elsif ENDS.include?(event.kind) && token >= @newest
        end_lease(token, at(body))
      end
    end

    private

    def begin_lease(token, holder, since)
      @newest = token
      @latest = Leadership.new(held: true, holder: holder, fencing_token: token, since: since)
    end

    def end_lease(token, since)
      @newest = @ended = token
      @latest = Leadership.new(held: false, since: since) if @latest.nil? || @latest.held?
    end

    def at(body)
      Messages.parse_date(body["at"])
    rescue ArgumentError, TypeError
      nil
    end
  end

  # One watch of one lock, over as many connections as it takes.
  class Watch
    SILENCE_SECONDS_MAX = 45.0
    STEADY_SECONDS = 10.0
    CONTENT_TYPE = "text/event-stream"

    def initialize(key, flows, views, courier, clock)
      @key = key
      @flows = flows
      @views = views
      @courier = courier
      @clock = clock
      @leadings = Leadings.new
      @rests = Rests.new
      @shown = nil
      @last_id = nil
      # The stream that is heard now. A watch that is forgotten rather than left (an Enumerator that nobody asks for
      # more) must not be told for ever.
      @hearing = []
      ObjectSpace.define_finalizer(self, Watch.forgetting(@hearing))
    end

    # A proc that does not know the watch, which it would keep alive.
    def self.forgetting(hearing)
      proc { hearing.each(&:forget) }
    end

    # Yields first how it is, then each change. Ends only by what the block does, or by raising.
    def each
      # `loop` would take a StopIteration of the caller's for its own end.
      yield next_change while true # rubocop:disable Style/InfiniteLoop
    ensure
      hang_up
    end

    private

    # What the caller's block raises is none of this: it is called outside.
    def next_change
      Attendance.during(@clock) do
        shown = @shown
        @shown = latest_after_next_event until @shown != shown
        @shown
      end
    end

    def latest_after_next_event
      connect if @hearing.empty?
      event = @events.shift
      return hear_more if event.nil?

      @look ||= event.kind == "reset"
      if @look
        @leadings.looked(@views.view(@key, nil))
        @look = false
      end
      @leadings.happened(event)
      @last_id = event.id || @last_id
      @leadings.latest
    rescue VolcanoError => e
      rest_after(e)
      @shown
    end

    def connect
      @began_at = @clock.now
      @reader = EventReader.new
      @events = []
      @look = true
      @heard_at = nil
      path = "#{Flows.lock_path(@key)}/events"
      @hearing << @courier.listen(path, last_id: @last_id, silence_seconds_max: SILENCE_SECONDS_MAX)
    end

    def hear_more
      stream = @hearing.first
      within = @heard_at ? SILENCE_SECONDS_MAX : @flows.timeout_seconds
      bytes = stream.read((@heard_at || @began_at) + within)
      raise ended(stream) if bytes.nil?

      @heard_at = @clock.now
      @events.concat(@reader.take(bytes))
      @shown
    rescue EventReader::TooLongError => e
      raise TransportError.new("#{stream.request.path}: #{e.message}", request_id: stream.request.request_id)
    end

    # Why there is no more to hear.
    def ended(stream)
      id = stream.request.request_id
      answer = @flows.expect(@courier.answer_of(stream), 200, id)
      unless answer.headers.fetch("content-type", "").start_with?(CONTENT_TYPE)
        return Messages.malformed(answer, "it is no event stream", id)
      end

      TransportError.new("#{stream.request.path}: the event stream ended", request_id: id)
    end

    def rest_after(failure)
      hang_up
      raise failure unless Rests.pass_by?(failure) && !@courier.closing?

      @rests.over if @clock.now - @began_at >= STEADY_SECONDS
      rest = @rests.seconds(failure)
      @courier.rest(rest) if rest.positive?
    end

    def hang_up
      @hearing.slice!(0..).each(&:drop)
    end
  end
end
