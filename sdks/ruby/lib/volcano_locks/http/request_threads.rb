# frozen_string_literal: true

# Requests run in threads of the client's own, never in the caller's.
#
# That is what makes an interrupt harmless (case 37): `Timeout.timeout` or `Thread#raise` hits a caller who waits for a
# {Call}, not code in the middle of an answer. The call is dropped, its thread killed, and the connection goes with it,
# so nobody ever reads the rest of somebody else's answer. It also gives what a blocking socket cannot: a limit on the
# whole request, by the client's clock, and requests side by side, so that one that hangs delays no other.
module VolcanoLocks
  # One request on its way. Made by the caller, run by a worker, waited for through `signal`.
  class Call
    # @return [Request]
    attr_reader :request
    # @return [Float] the instant by which the answer has to be there
    attr_reader :until
    # @return [Signal] set once there is an outcome, or never will be
    attr_reader :signal
    # @return [Thread, nil] the worker that runs it
    attr_reader :thread

    # The block is told, in the worker's thread, that the call is over. A call `to_the_end` is waited for when the
    # client is closed.
    def initialize(request, until_, clock, to_the_end: false, &on_over)
      @to_the_end = to_the_end
      @request = request
      @until = until_
      @clock = clock
      @on_over = on_over
      @signal = Signal.new
      @mutex = Mutex.new
      @dropped = false
      @over = false
      @outcome = nil
      @finished_at = nil
      @thread = nil
    end

    # @return [Boolean] whether everybody who has to know of its end knows
    def over?
      @over
    end

    # @return [Boolean] whether it is not to be cut short
    def to_the_end?
      @to_the_end
    end

    # @return [Boolean] whether there is an outcome, be it in time or not
    def done?
      @signal.set?
    end

    # @return [Boolean] whether its time was up before its answer was there
    def late?
      (@finished_at || @clock.now) >= @until
    end

    # @return [Answer, Exception, nil] what came of it; nil where nothing did
    attr_reader :outcome

    # In a worker, which runs with interrupts deferred: get the answer. False: this thread was told to end.
    def run(transport)
      return true unless started?

      # RuboCop would have this rescue less; but whatever a transport raises is the caller's to hear of.
      begin
        outcome = Thread.handle_interrupt(Object => :immediate) { serve(transport) }
      rescue Exception => e # rubocop:disable Lint/RescueException
        outcome = e
      ensure
        may_go_on = finish(outcome)
      end
      may_go_on
    end

    # Nobody waits for it any more: end its thread, and with it the connection. `outcome` is told to whoever still
    # looks. Harmless when repeated.
    def drop(outcome = nil)
      @mutex.synchronize do
        next if done? || @dropped

        @dropped = true
        @outcome = outcome
        @thread ? @thread.kill : conclude
      end
    end

    # @return [Boolean] whether it was dropped
    def dropped?
      @dropped
    end

    private

    def serve(transport)
      transport.call(@request)
    end

    def started?
      @mutex.synchronize do
        next false if @dropped

        @thread = Thread.current
        true
      end
    end

    def finish(outcome)
      @mutex.synchronize do
        @outcome = outcome unless @dropped
        @finished_at = @clock.now
        @thread = nil
        conclude
        !@dropped
      end
    end

    # The waiting one looks at the outcome before anybody can think that all is at rest.
    def conclude
      @signal.set
      @on_over&.call
      @over = true
    end
  end

  # The threads of one client: as many as there are requests at a time, up to a limit, none when there is nothing to do.
  # A forked child finds none of its parent's and starts its own.
  class Workers
    THREADS_MAX = 64
    LONG_THREADS_MAX = 1000
    IDLE_SECONDS_MAX = 30.0
    CLOSED = "this client is closed"

    def initialize(transport, threads_max)
      @transport = transport
      @threads_max = threads_max
      @closing = false
      @closed = false
      begin_here
    end

    # Have `call` run by the next free thread.
    def submit(call)
      return run_alone(call) if Thread.current.status == "aborting"

      after_fork
      @mutex.synchronize do
        refuse_if_closed(call)
        @queue << call
        start if @idle < @queue.length && @count < @threads_max
        @added.signal
      end
    end

    # Take no more calls but those that go to the end, and end the others.
    def end_what_can_be_cut_short
      after_fork
      calls = @mutex.synchronize do
        @closing = true
        cut = @queue.reject(&:to_the_end?)
        @queue -= cut
        cut + @running.reject(&:to_the_end?)
      end
      calls.each { |call| cut_short(call) }
    end

    # End every thread. Calls that go to the end are waited for, for so many seconds of real time; what is left then
    # ends without an answer. Idempotent.
    def close(seconds)
      after_fork
      end_what_can_be_cut_short
      leaving = @mutex.synchronize { @queue + @running }
      give_up = real_seconds + seconds
      leaving.each { |call| wait_for(call, give_up) }
      calls = @mutex.synchronize do
        @closed = true
        @added.broadcast
        @queue.slice!(0..) + @running
      end
      calls.each { |call| cut_short(call) }
    end

    private

    def wait_for(call, give_up)
      call.signal.sleep(give_up - real_seconds) { false } until call.done? || real_seconds >= give_up
    end

    def refuse_if_closed(call)
      raise VolcanoError, CLOSED if @closed || (@closing && !call.to_the_end?)
    end

    def cut_short(call)
      call.drop(CutShortError.new(CLOSED, request_id: call.request.request_id))
    end

    def real_seconds
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # This thread is being killed, maybe because the process ends: an idle worker would be waited for.
    def run_alone(call)
      refuse_if_closed(call)
      new_thread { call.run(@transport) }
    rescue ThreadError # at the end of a process there are no new threads
      call.run(@transport)
    end

    def begin_here
      @pid = Process.pid
      @mutex = Mutex.new
      @added = ConditionVariable.new
      @queue = []
      @running = []
      @idle = 0
      @count = 0
    end

    def after_fork
      begin_here if @pid != Process.pid
    end

    def start
      new_thread { work }
      @count += 1
    rescue ThreadError # no more threads are to be had: those there are have to do
      raise if @count.zero?
    end

    def new_thread
      # A new thread begins with the mask of its maker; whatever that was, this one is interrupted only inside a call.
      Thread.handle_interrupt(Object => :never) do
        Thread.new do
          Thread.current.report_on_exception = false
          Thread.current.name = "volcano-locks"
          yield
        end
      end
    end

    def work
      while (call = next_call)
        may_go_on = call.run(@transport)
        @mutex.synchronize { @running.delete(call) }
        break unless may_go_on
      end
    ensure
      @mutex.synchronize do
        @running.delete(call)
        @count -= 1
        # Killed for a dropped call, it has a successor; killed because the process ends, it must not.
        start if call&.dropped? && !@closed && @idle < @queue.length
      end
    end

    def next_call
      @mutex.synchronize do
        @idle += 1
        begin
          # At the end of the process an idle worker is killed, and must not defer that.
          Thread.handle_interrupt(Object => :on_blocking) do
            @added.wait(@mutex, IDLE_SECONDS_MAX) if @queue.empty? && !@closed
          end
        ensure
          @idle -= 1
        end
        call = @queue.shift
        @running << call if call
        call
      end
    end
  end
end
