# frozen_string_literal: true

module VolcanoLocks
  # Passes messages to {VolcanoLocks.logger} in a thread of its own, so that a logger that blocks or raises affects no
  # operation and no renewal (SDK-25, case 81). A trap handler may log too.
  #
  # `debug` reports each acquire, renewal, release and wait; `warn` a loss, a failed renewal and an unconfirmed release.
  # No message contains an owner token or a service key.
  #
  # Limit: while the logger blocks, at most `MESSAGES_MAX` messages are kept, and the process ends at most
  # `EXIT_SECONDS_MAX` later.
  module Log
    MESSAGES_MAX = 1_000
    EXIT_SECONDS_MAX = 1.0
    POLL_SECONDS = 0.005
    NEVER = { Object => :never }.freeze
    private_constant :NEVER

    class << self
      include ForkSafe

      # Log the block's value, if the logger wants it.
      def debug
        logger = VolcanoLocks.logger
        write(logger, :debug, yield) if debug?(logger)
      end

      # Log a warning.
      def warn(text)
        logger = VolcanoLocks.logger
        write(logger, :warn, text) if logger
      end

      # Wait until the logger has received all messages, or `seconds` of real time have passed.
      def drain(seconds = EXIT_SECONDS_MAX)
        reset_after_fork
        deadline = RealTime.seconds + seconds
        sleep(POLL_SECONDS) until idle? || RealTime.seconds > deadline
      end

      private

      def debug?(logger)
        logger.instance_of?(Logger) ? logger.debug? : logger.respond_to?(:debug?) && without_errors { logger.debug? }
      end

      # An interrupt of the caller is no error of the logger: it is deferred to the end. An error that a trap handler
      # raises meanwhile is lost, so nothing but the call of a foreign logger is in the block.
      def without_errors
        Thread.handle_interrupt(NEVER) do
          yield
        rescue StandardError, ScriptError
          false
        end
      end

      def reset
        @queue = Thread::Queue.new
        @thread = nil
      end

      def idle?
        @thread.nil? || !@thread.alive? || (@queue.empty? && @queue.num_waiting.positive?)
      end

      def write(*message)
        reset_after_fork
        @queue << message if @queue.length < MESSAGES_MAX
        @thread = start unless @thread&.alive?
      rescue ThreadError
        nil # no thread is to be had: a later message starts one
      end

      def start
        pid = Process.pid
        at_exit { drain if Process.pid == pid }
        # A new thread inherits its creator's interrupt mask, and must not outlive the process.
        Thread.new { Thread.handle_interrupt(Object => :immediate) { run(@queue) } }
              .tap { |thread| thread.name = "volcano-locks log" }
      end

      def run(queue)
        Thread.current.report_on_exception = false
        loop do
          logger, level, text = queue.pop
          logger.public_send(level, text)
        rescue StandardError, ScriptError
          nil
        end
      end
    end
  end
  private_constant :Log
end
