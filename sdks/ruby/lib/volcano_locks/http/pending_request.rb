# frozen_string_literal: true

module VolcanoLocks
  # One request in progress. The caller creates it, a request thread runs it, and the caller waits for its `signal`. Or
  # the caller runs it itself, over an open connection.
  class PendingRequest
    # @return [Request]
    attr_reader :request
    # @return [Float] the instant by which the response must have arrived
    attr_reader :deadline
    # @return [Signal] set once the request is done or cancelled
    attr_reader :signal
    # @return [Thread, nil] the thread that runs it
    attr_reader :thread
    # @return [Response, Exception, nil] the result; nil if there is none
    attr_reader :outcome

    # The block is called in the request thread when the request is over. Closing the client waits for a request with
    # `must_finish`.
    def initialize(request, deadline, clock, must_finish: false, &on_over)
      @must_finish = must_finish
      @request = request
      @deadline = deadline
      @clock = clock
      @on_over = on_over
      @signal = Signal.new
      @mutex = Mutex.new
      @cancelled = false
      @over = false
      @outcome = nil
      @finished_at = nil
      @thread = @connection = nil
    end

    # @return [Boolean] whether it is over and its caller has been notified
    def over?
      @over
    end

    # @return [Boolean] whether closing the client waits for it
    def must_finish?
      @must_finish
    end

    # @return [Boolean] whether it is done or cancelled, in time or not
    def done?
      @signal.set?
    end

    # @return [Boolean] whether its deadline passed before the response arrived
    def timed_out?
      (@finished_at || @clock.now) >= @deadline
    end

    # @return [PendingRequest] the same request, to be sent again
    def again
      PendingRequest.new(@request, @deadline, @clock, must_finish: @must_finish)
    end

    # Get the response, in a request thread with interrupts deferred.
    #
    # @return [Boolean] false if this thread must end
    def run(transport)
      return true unless claim

      # The caller raises whatever the transport raised, so every exception is kept as the outcome.
      begin
        outcome = Thread.handle_interrupt(Object => :immediate) { serve(transport) }
      rescue Exception => e # rubocop:disable Lint/RescueException
        outcome = e
      ensure
        thread_continues = finish(outcome)
      end
      thread_continues
    end

    # Get the response in the caller's own thread. Raises what the transport raised or what interrupted this thread.
    def run_here(transport, connection)
      outcome = nil
      @mutex.synchronize do
        @thread = Thread.current
        @connection = connection unless @cancelled
      end
      outcome = transport.call(@request, connection) if @connection
    ensure
      finish(outcome)
    end

    # End its thread and with it the connection. `outcome` is for a caller that still waits. Repeating it is harmless.
    def cancel(outcome = nil)
      @mutex.synchronize do
        next if done? || @cancelled

        @cancelled = true
        @outcome = outcome
        if @connection
          @connection.break
        else
          @thread ? @thread.kill : notify
        end
      end
    end

    # A test's clock has moved: break the connection of a request in its caller's thread that has timed out.
    def clock_moved
      @mutex.synchronize { @connection.break if @connection && !done? && timed_out? }
    end

    # @return [Boolean] whether it was cancelled
    def cancelled?
      @cancelled
    end

    private

    def serve(transport)
      transport.call(@request)
    end

    def claim
      @mutex.synchronize do
        next false if @cancelled

        @thread = Thread.current
        true
      end
    end

    def finish(outcome)
      @mutex.synchronize do
        @outcome = outcome unless @cancelled
        @finished_at = @clock.now
        @thread = nil
        notify
        !@cancelled
      end
    end

    # `@over` comes last: until the caller is notified, a test's clock must not take the work for finished.
    def notify
      @signal.set
      @on_over&.call
      @over = true
    end
  end
end
