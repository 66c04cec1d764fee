# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # What can befall a request.
    module Faults
      # Let it through.
      Pass = Class.new
      # The server cannot be reached: the request certainly was not served.
      DropBeforeSend = Class.new
      # The connection breaks as the request goes out: it was not served, but the client cannot know (case 32).
      Reset = Class.new
      # Served, and the answer is lost (case 13).
      DropAfterSend = Class.new
      # Served twice; the second answer is the one that comes back.
      Duplicate = Class.new
      # Served, and the answer never comes: the request's own timeout ends it, on the clock.
      Hang = Class.new
      # Served only after `seconds` which somebody else moves the clock by.
      Delay = Struct.new(:seconds)
      # Served, and the answer comes `seconds` later: moves the clock itself (for a caller that blocks).
      Takes = Struct.new(:seconds)
      # Not served; somebody in between answers this.
      Answers = Struct.new(:status, :body, :headers)
    end

    # A network that fails by script: wraps any transport, an {HttpTransport} included.
    #
    # Each request takes the next fault of the script; when the script is used up, `otherwise` applies. What was sent is
    # kept in `seen`, so that a test can tell a retry with the same ids from a new request.
    class FlakyTransport
      # @return [Array<Object>] faults to come, from {Faults}
      attr_accessor :script
      # @return [Object] the fault of every request beyond the script
      attr_accessor :otherwise
      # @return [Array<Request>] as they left the client
      attr_reader :seen

      def initialize(inner, clock, script: [], otherwise: Faults::Pass.new)
        @inner = inner
        @clock = clock
        @script = script
        @otherwise = otherwise
        @seen = []
        @mutex = Mutex.new
      end

      # Apply the next fault.
      def call(request)
        fault = next_fault(request)
        before(request, fault) || served(request, fault)
      end

      # Apply the next fault to an event stream: what befalls an answer befalls its first bytes.
      def stream(request)
        fault = next_fault(request)
        before(request, fault) || @inner.stream(request) do |bytes|
          case fault
          when Faults::DropAfterSend then raise Errno::ECONNRESET, "scripted"
          when Faults::Hang then rest(Float::INFINITY)
          end
          yield bytes
        end
      end

      # Close the transport beneath.
      def close
        @inner.close if @inner.respond_to?(:close)
      end

      private

      def next_fault(request)
        @mutex.synchronize do
          @seen << request
          @script.shift || @otherwise
        end
      end

      # What comes instead of an answer of the server; nil where the request goes on.
      def before(request, fault)
        case fault
        when Faults::DropBeforeSend then raise unsent(request)
        when Faults::Reset then raise Errno::ECONNRESET, "scripted"
        when Faults::Answers then Answer.new(fault.status, fault.headers || {}, fault.body || "")
        when Faults::Delay then rest(fault.seconds)
        end
      end

      def served(request, fault)
        answer = @inner.call(request)
        case fault
        when Faults::DropAfterSend then raise Errno::ECONNRESET, "scripted"
        when Faults::Duplicate then answer = @inner.call(request)
        when Faults::Hang then rest(Float::INFINITY)
        when Faults::Takes then @clock.jump(fault.seconds)
        end
        answer
      end

      def unsent(request)
        TransportError.new("scripted: cannot connect", request_sent: false, request_id: request.request_id)
      end

      def rest(seconds)
        until_ = @clock.now + seconds
        signal = Signal.new
        @clock.wait(until_, signal) while @clock.now < until_
        nil
      end
    end
  end
end
