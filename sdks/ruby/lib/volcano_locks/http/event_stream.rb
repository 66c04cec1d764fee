# frozen_string_literal: true

module VolcanoLocks
  # The response to a `watch`: a {PendingRequest} whose thread passes the bytes of an event stream to a reader.
  #
  # A slow reader makes the thread wait, and with it the server. An abandoned stream ends with the next bytes, at the
  # latest with the service's next comment.
  class EventStream < PendingRequest
    UNREAD_BYTES_MAX = 65_536
    FULL_POLL_SECONDS = 1.0

    # The stream no longer has a reader.
    class AbandonedError < StandardError; end
    private_constant :AbandonedError

    def initialize(request, clock)
      @arrived = Signal.new
      @buffer_mutex = Mutex.new
      @drained = ConditionVariable.new
      @unread = "".b
      @abandoned = false
      @pid = Process.pid
      super(request, Float::INFINITY, clock) { @arrived.set }
    end

    # Wait for the next bytes.
    #
    # @return [String, nil] bytes; nil when the stream has ended
    # @raise [TransportError] if nothing arrived before `until_`
    def read(until_)
      @arrived.clear
      while (bytes = take_unread).empty?
        return nil if done? || Process.pid != @pid
        raise silence_error if @clock.now >= until_

        @clock.wait(until_, @arrived)
        @arrived.clear
      end
      bytes
    end

    # End the stream without a reader. Takes no lock, because a finalizer may run anywhere.
    def abandon
      @abandoned = true
    end

    private

    def serve(transport)
      raise VolcanoError, "this transport has no `stream` method" unless transport.respond_to?(:stream)

      transport.stream(@request) { |bytes| push(bytes) }
    end

    def push(bytes)
      @buffer_mutex.synchronize do
        @unread << bytes
        @arrived.set
        @drained.wait(@buffer_mutex, FULL_POLL_SECONDS) while @unread.bytesize > UNREAD_BYTES_MAX && !@abandoned
      end
      raise AbandonedError, "the stream has no reader" if @abandoned
    end

    def take_unread
      @buffer_mutex.synchronize do
        @drained.signal
        @unread.slice!(0..)
      end
    end

    def silence_error
      TransportError.new("#{@request.verb} #{@request.path}: the event stream was silent for too long",
                         request_id: @request.request_id)
    end
  end
end
