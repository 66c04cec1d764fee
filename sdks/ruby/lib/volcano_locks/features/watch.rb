# frozen_string_literal: true

module VolcanoLocks
  # One watch of one lock, over as many connections as it takes (SDK-14): follows the lock's event stream, and reads the
  # lock itself when events may have been missed.
  #
  # Views and events overlap and may report a change twice or late: a view is read after its stream began, and a resumed
  # stream first sends the missed events. {LeadershipTracker} puts both in order.
  #
  # Limit: changes that happen while the client is disconnected may be merged or skipped; the last one is reported.
  class Watch
    SILENCE_SECONDS_MAX = 45.0
    STEADY_SECONDS = 10.0
    CONTENT_TYPE = "text/event-stream"

    def initialize(key, operations, lock_reader, sender, clock)
      @key = key
      @operations = operations
      @lock_reader = lock_reader
      @sender = sender
      @clock = clock
      @tracker = LeadershipTracker.new
      @backoff = Backoff.new
      @reported = nil
      @last_id = nil
      # The open stream, if any. A watch may be abandoned (an Enumerator without further `next`). Its stream ends when
      # the watch is garbage-collected.
      @streams = []
      ObjectSpace.define_finalizer(self, Watch.finalizer_for(@streams))
    end

    # A proc without a reference to the watch, which the reference would keep alive.
    def self.finalizer_for(streams)
      proc { streams.each(&:abandon) }
    end

    # Yields the current leadership, then each change. Ends only if the block ends it, or by an error.
    def each
      # `loop` would rescue a StopIteration that the caller's block raises.
      yield next_change while true # rubocop:disable Style/InfiniteLoop
    ensure
      close_streams
    end

    private

    # The caller's block runs outside, so that its errors are not taken for errors of the stream.
    def next_change
      CallerActivity.during(@clock) do
        reported = @reported
        @reported = latest_after_next_event until @reported != reported
        @reported
      end
    end

    def latest_after_next_event
      connect if @streams.empty?
      event = @events.shift
      return read_more if event.nil?

      @view_needed ||= event.kind == "reset" || LeadershipTracker.unusable?(event)
      if @view_needed
        @tracker.update_from_view(@lock_reader.view(@key, nil))
        @view_needed = false
      end
      @tracker.update_from_event(event)
      @last_id = event.id || @last_id
      @tracker.latest
    rescue VolcanoError => e
      back_off(e)
      @reported
    end

    def connect
      @connected_at = @clock.now
      @parser = SseParser.new
      @events = []
      @view_needed = true
      @last_read_at = nil
      path = "#{Operations.lock_path(@key)}/events"
      @streams << @sender.open_event_stream(path, last_id: @last_id, silence_seconds_max: SILENCE_SECONDS_MAX)
    end

    def read_more
      stream = @streams.first
      within = @last_read_at ? SILENCE_SECONDS_MAX : @operations.timeout_seconds
      bytes = stream.read((@last_read_at || @connected_at) + within)
      raise end_error(stream) if bytes.nil?

      @last_read_at = @clock.now
      @events.concat(@parser.feed(bytes))
      @reported
    rescue SseParser::TooLongError => e
      raise TransportError.new("#{stream.request.path}: #{e.message}", request_id: stream.request.request_id)
    end

    # Why the stream ended.
    def end_error(stream)
      id = stream.request.request_id
      response = @operations.expect_status(@sender.response_of(stream), 200, id)
      unless Messages.media_type?(response.headers, CONTENT_TYPE)
        return Messages.malformed(response, "it is not an event stream", id)
      end

      TransportError.new("#{stream.request.path}: the event stream ended", request_id: id)
    end

    def back_off(failure)
      close_streams
      raise failure unless Backoff.transient?(failure) && !@sender.closing?

      @backoff.reset if @clock.now - @connected_at >= STEADY_SECONDS
      delay = @backoff.seconds_after(failure)
      @sender.pause(delay) if delay.positive?
    end

    def close_streams
      @streams.slice!(0..).each(&:cancel)
    end
  end
end
