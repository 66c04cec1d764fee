# frozen_string_literal: true

# The conformance target of the Ruby client.
module Conformance
  class BodyError < StandardError; end
  class BodyCancelled < StandardError; end

  ARRIVAL_SECONDS_MAX = 10
  ARRIVAL_POLL_SECONDS = 0.002

  # Wait until the block returns true, at most `ARRIVAL_SECONDS_MAX` of real time.
  def self.wait_until
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARRIVAL_SECONDS_MAX
    sleep(ARRIVAL_POLL_SECONDS) until yield || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
  end

  # A thread that runs one operation of an actor. The clock treats it as waiting while it waits on the clock.
  class Task
    INTERRUPT_SECONDS_MAX = 10

    attr_reader :thread

    def initialize(clock, &work)
      @thread = Thread.new(&work)
      @thread.report_on_exception = false
      clock.watch(self)
    end

    def over?
      !@thread.alive?
    end

    # The block's value; raises its error.
    def result
      @thread.value
    end

    # Interrupt it and wait for its end. Until it handles the interrupt, the clock counts it as waiting.
    def interrupt
      @thread.raise(BodyCancelled)
      @thread.join(INTERRUPT_SECONDS_MAX)
    rescue BodyCancelled
      nil
    end

    # End it at the end of a scenario. Its errors were reported before.
    def abort
      @thread.kill.join
    rescue BodyError, BodyCancelled, VolcanoLocks::VolcanoError
      nil
    end
  end

  # A `with_lock` whose body waits until `finish`.
  class HeldBlock
    attr_reader :guard, :task

    def initialize(locks, clock, key, **options)
      @finish = VolcanoLocks::Signal.new
      @how = nil
      @task = Task.new(clock) do
        locks.with_lock(key, **options) do |guard|
          @guard = guard
          clock.wait(Float::INFINITY, @finish) until @finish.set?
          raise BodyError, "the body's own error" if @how == "raises"

          Thread.current.raise(BodyCancelled) if @how == "cancelled"
        end
      end
    end

    def entered?
      !@guard.nil? || @task.over?
    end

    def finish(how)
      @how = how
      @finish.set
    end
  end

  # A `lead` whose block runs until `finish` or a loss.
  class Campaign
    RESULT = "the block's result"

    attr_reader :starts, :ends, :fencing_token, :task

    def initialize(locks, clock, key, ttl)
      @clock = clock
      @starts = @ends = 0
      @how = nil
      @wake = VolcanoLocks::Signal.new
      @task = Task.new(clock) { locks.lead(key, ttl: ttl) { |guard| run(guard) } }
    end

    # End it by its block, or from outside by an interrupt.
    def finish(how)
      @how = how
      how == "cancelled" ? @task.interrupt : @wake.set
    end

    def check_result
      value = @task.result
      raise "lead returned #{value.inspect}" unless value == RESULT
    end

    private

    def run(guard)
      raise "two runs of one campaign overlap" if @starts != @ends
      raise "the block starts with a lost lease" if guard.lost?

      @starts += 1
      @fencing_token = guard.fencing_token
      begin
        wait_for_end(guard)
      ensure
        @ends += 1
      end
    end

    def wait_for_end(guard)
      wake = @wake = VolcanoLocks::Signal.new
      Task.new(@clock) { guard.wait_lost && wake.set }
      @clock.wait(Float::INFINITY, wake) until wake.set?
      raise BodyError, "the block's own error" if @how == "raises"

      RESULT
    end
  end
end
