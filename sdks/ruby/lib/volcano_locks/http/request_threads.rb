# frozen_string_literal: true

module VolcanoLocks
  # The threads that run a client's requests.
  #
  # In a thread of its own, a request makes an interrupt of the caller harmless (case 37): `Timeout.timeout` or
  # `Thread#raise` reaches a caller that waits for a {PendingRequest}, not code that is reading a response. The request
  # is cancelled and its thread killed, which closes the connection, so the rest of a response is never taken for
  # another one. It also allows what a blocking socket does not: a limit by any clock, also while a host's address is
  # looked up.
  #
  # `run_here` runs a request in the caller's own thread, over a connection that is open, which saves two switches
  # between threads. An interrupt then closes the connection and comes out as itself.
  #
  # There are as many threads as concurrent requests, up to a limit, and none when idle. A forked child starts its own.
  class RequestThreads
    include ForkSafe

    THREADS_MAX = 64
    LONG_THREADS_MAX = 1000
    IDLE_SECONDS_MAX = 30.0
    CLOSED = "this client is closed"

    def initialize(transport, threads_max)
      @transport = transport
      @threads_max = threads_max
      @closing = false
      @closed = false
      reset_after_fork
    end

    # Run `pending` in the next free thread.
    def submit(pending)
      return run_in_own_thread(pending) if Thread.current.status == "aborting"

      reset_after_fork
      @mutex.synchronize do
        refuse_if_closed(pending)
        @queue << pending
        start_thread if @idle < @queue.length && @count < @threads_max
        @added.signal
      end
    end

    # Run `pending` in the caller's thread, over an open connection.
    def run_here(pending, connection)
      reset_after_fork
      @mutex.synchronize do
        refuse_if_closed(pending)
        @running << pending
      end
      pending.run_here(@transport, connection)
    ensure
      @mutex.synchronize { @running.delete(pending) }
    end

    # Refuse and cancel all requests except those that must finish.
    def cancel_optional
      reset_after_fork
      cancelled = @mutex.synchronize do
        @closing = true
        queued = @queue.reject(&:must_finish?)
        @queue -= queued
        queued + @running.reject(&:must_finish?)
      end
      cancelled.each { |pending| cancel(pending) }
    end

    # End every thread. Wait up to `seconds` of real time for requests that must finish, then cancel the rest. Repeating
    # it is harmless.
    def close(seconds)
      reset_after_fork
      cancel_optional
      finishing = @mutex.synchronize { @queue + @running }
      deadline = RealTime.seconds + seconds
      finishing.each { |pending| wait_for(pending, deadline) }
      rest = @mutex.synchronize do
        @closed = true
        @added.broadcast
        @queue.slice!(0..) + @running
      end
      rest.each { |pending| cancel(pending) }
    end

    private

    def wait_for(pending, deadline)
      pending.signal.sleep(deadline - RealTime.seconds) { false } until pending.done? || RealTime.seconds >= deadline
    end

    def refuse_if_closed(pending)
      return unless @closed || (@closing && !pending.must_finish?)

      raise VolcanoError.new(CLOSED, request_id: pending.request.request_id)
    end

    def cancel(pending)
      pending.cancel(RequestCancelledError.new(CLOSED, request_id: pending.request.request_id))
    end

    # The caller's thread is being killed. The process may be exiting, and must not wait for an idle thread.
    def run_in_own_thread(pending)
      refuse_if_closed(pending)
      new_thread { pending.run(@transport) }
    rescue ThreadError # Ruby starts no threads at the end of a process
      pending.run(@transport)
    end

    def reset
      @mutex = Mutex.new
      @added = ConditionVariable.new
      @queue = []
      @running = []
      @idle = 0
      @count = 0
    end

    def start_thread
      new_thread { work }
      @count += 1
    rescue ThreadError # the system has no more threads: the existing ones must suffice
      raise if @count.zero?
    end

    def new_thread
      # A new thread inherits its creator's interrupt mask; this one is only interrupted inside a request.
      Thread.handle_interrupt(Object => :never) do
        Thread.new do
          Thread.current.report_on_exception = false
          Thread.current.name = "volcano-locks"
          yield
        end
      end
    end

    def work
      while (pending = next_request)
        thread_continues = pending.run(@transport)
        @mutex.synchronize { @running.delete(pending) }
        break unless thread_continues
      end
    ensure
      @mutex.synchronize do
        @running.delete(pending)
        @count -= 1
        # Replace a thread that was killed for a cancelled request, but not one that ends with the process.
        start_thread if pending&.cancelled? && !@closed && @idle < @queue.length
      end
    end

    def next_request
      @mutex.synchronize do
        @idle += 1
        begin
          # At the end of the process Ruby kills idle threads, so an idle thread must not defer interrupts.
          Thread.handle_interrupt(Object => :on_blocking) do
            @added.wait(@mutex, IDLE_SECONDS_MAX) if @queue.empty? && !@closed
          end
        ensure
          @idle -= 1
        end
        pending = @queue.shift
        @running << pending if pending
        pending
      end
    end
  end
end
