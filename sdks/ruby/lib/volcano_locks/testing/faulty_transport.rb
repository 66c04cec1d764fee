# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # The faults of a request.
    module Faults
      # No fault.
      Pass = Class.new
      # The connection is refused: the request was certainly not served.
      DropBeforeSend = Class.new
      # The connection breaks while the request is sent: it was not served, but the client cannot know.
      Reset = Class.new
      # Served, and the response is lost.
      DropAfterSend = Class.new
      # Served twice; the client gets the second response.
      Duplicate = Class.new
      # Served, and the response never arrives: the request times out by the clock.
      Hang = Class.new
      # Served after `seconds`; another thread must move the clock by that much.
      Delay = Struct.new(:seconds)
      # Served, and the response arrives `seconds` later: moves the clock itself, for a caller that blocks.
      Takes = Struct.new(:seconds)
      # Not served; a proxy sends this response.
      Respond = Struct.new(:status, :body, :headers)
    end

    # A transport that injects faults by script, around any other transport such as an {HttpTransport}.
    #
    # Each request takes the next fault of the script; after its end, `otherwise` applies. `seen` keeps the requests, so
    # that a test can distinguish a retry with the same ids from a new request.
    class FaultyTransport
      # @return [Array<Object>] the next faults, from {Faults}
      attr_accessor :script
      # @return [Object] the fault of every request after the script
      attr_accessor :otherwise
      # @return [Array<Request>] the requests as the client sent them
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

      # Apply the next fault to an event stream: faults of a response apply to its first bytes.
      def stream(request)
        fault = next_fault(request)
        before(request, fault) || @inner.stream(request) do |bytes|
          case fault
          when Faults::DropAfterSend then raise Errno::ECONNRESET, "scripted"
          when Faults::Hang then wait(Float::INFINITY)
          end
          yield bytes
        end
      end

      # Close the wrapped transport.
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

      # The response or error that replaces the server's; nil if the request is sent.
      def before(request, fault)
        case fault
        when Faults::DropBeforeSend then raise connection_refused(request)
        when Faults::Reset then raise Errno::ECONNRESET, "scripted"
        when Faults::Respond then Response.new(fault.status, fault.headers || {}, fault.body || "")
        when Faults::Delay then wait(fault.seconds)
        end
      end

      def served(request, fault)
        response = @inner.call(request)
        case fault
        when Faults::DropAfterSend then raise Errno::ECONNRESET, "scripted"
        when Faults::Duplicate then response = @inner.call(request)
        when Faults::Hang then wait(Float::INFINITY)
        when Faults::Takes then @clock.jump(fault.seconds)
        end
        response
      end

      def connection_refused(request)
        TransportError.new("scripted: cannot connect", request_sent: false, request_id: request.request_id)
      end

      def wait(seconds)
        until_ = @clock.now + seconds
        signal = Signal.new
        @clock.wait(until_, signal) while @clock.now < until_
        nil
      end
    end
  end
end
