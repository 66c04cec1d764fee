# frozen_string_literal: true

module Conformance
  # The client's clock over a real server, whose clock moves along. Once a request has waited in the server's queue, the
  # clock also stops at the instants at which the server has something to do, and continues when the server is at rest:
  # when all requests in progress wait.
  class SharedClock < VolcanoLocks::Testing::ManualClock
    POLL_SECONDS = 0.001

    def initialize(json_lines)
      super() { |seconds| json_lines.move_server(seconds) }
      @json_lines = json_lines
      @count_mutex = Mutex.new
      @in_progress = @changes = 0
      @server_waits = false
      @server_due = Float::INFINITY
    end

    def next_due
      [super, @server_due > now ? @server_due : Float::INFINITY].min
    end

    def settle
      loop do
        changes = @changes
        super
        return unless @server_waits

        state = @json_lines.server_state(@in_progress)
        seconds = state.fetch("next_due_seconds")
        @server_due = seconds ? now + seconds : Float::INFINITY
        # A response that arrived since may have woken a thread.
        return if state.fetch("at_rest") && changes == @changes

        sleep(POLL_SECONDS)
      end
    end

    # Send a request. One that may wait on the server is sent in another thread while this one waits on the clock.
    def send_request(may_wait, &request)
      counted { may_wait ? in_other_thread(&request) : yield }
    end

    # Open a stream: it is in progress until the block has called the proc that it receives.
    def open_stream
      @server_waits = true
      counted = [1]
      opened = -> { count(-counted.shift) unless counted.empty? }
      count(1)
      yield opened
    ensure
      opened.call
    end

    private

    def in_other_thread(&request)
      @server_waits = true
      over = VolcanoLocks::Signal.new
      thread = Thread.new do
        Thread.current.report_on_exception = false
        request.call
      ensure
        over.set
      end
      begin
        wait(Float::INFINITY, over) until over.set?
        thread.value
      ensure
        thread.kill.join unless over.set?
      end
    end

    # Counted from before the request can wait until its thread has woken.
    def counted
      count(1)
      yield
    ensure
      count(-1)
    end

    def count(one)
      @count_mutex.synchronize do
        @in_progress += one
        @changes += 1
      end
    end
  end
end
