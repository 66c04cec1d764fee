# frozen_string_literal: true

module VolcanoLocks
  # An answer that goes on: a {Call} whose worker hands over what comes, piece by piece, to one who reads it.
  #
  # Whoever reads too slowly makes the worker wait, and with it the server. A stream that nobody can read any more ends
  # with what comes next, which is at the latest the service's next comment.
  class Stream < Call
    UNREAD_BYTES_MAX = 65_536
    ROOM_LOOK_SECONDS = 1.0

    # Nobody reads it any more.
    class ForgottenError < StandardError; end
    private_constant :ForgottenError

    def initialize(request, clock)
      @came = Signal.new
      @pieces = Mutex.new
      @room = ConditionVariable.new
      @unread = "".b
      @forgotten = false
      @pid = Process.pid
      super(request, Float::INFINITY, clock) { @came.set }
    end

    # Wait for what comes next.
    #
    # @return [String, nil] bytes; nil when it has ended
    # @raise [TransportError] if nothing came until then
    def read(until_)
      loop do
        @came.clear
        bytes = unread
        return bytes unless bytes.empty?
        return nil if done? || Process.pid != @pid
        raise late if @clock.now >= until_

        @clock.wait(until_, @came)
      end
    end

    # Nobody can read it any more. Takes no lock: a finalizer may run anywhere.
    def forget
      @forgotten = true
    end

    private

    def serve(transport)
      raise VolcanoError, "this transport has no `stream`" unless transport.respond_to?(:stream)

      transport.stream(@request) { |bytes| take(bytes) }
    end

    def take(bytes)
      @pieces.synchronize do
        @unread << bytes
        @came.set
        @room.wait(@pieces, ROOM_LOOK_SECONDS) while @unread.bytesize > UNREAD_BYTES_MAX && !@forgotten
      end
      raise ForgottenError, "nobody reads" if @forgotten
    end

    def unread
      @pieces.synchronize do
        @room.signal
        @unread.slice!(0..)
      end
    end

    def late
      TransportError.new("#{@request.verb} #{@request.path}: the event stream was silent for too long",
                         request_id: @request.request_id)
    end
  end
end
