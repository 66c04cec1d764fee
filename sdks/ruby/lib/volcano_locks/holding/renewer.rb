# frozen_string_literal: true

module VolcanoLocks
  # The renewal of one hold: at most one request in progress.
  class RenewalTask
    ERROR_PAUSE_SECONDS = 0.2

    attr_reader :hold

    def initialize(hold, operations, clock, wake)
      @hold = hold
      @operations = operations
      @clock = clock
      @wake = wake
      @mutex = Mutex.new
      @renewal = nil
      @stopped = false
    end

    # Do what is due.
    #
    # @return [Float, nil] when to run again at the latest; nil when the task is over
    def run_due
      @mutex.synchronize { @stopped ? nil : advance }
    rescue StandardError => e # after any error the lease may still be alive (case 2)
      @renewal = nil
      @hold.failed(e)
      @clock.now + ERROR_PAUSE_SECONDS
    end

    # Start no more renewals. One in progress may finish within `grace_seconds` of real time; then it is cancelled.
    def stop(grace_seconds = 0.0)
      renewal = @mutex.synchronize do
        @stopped = true
        @renewal.tap { @renewal = nil }
      end
      grace_seconds.positive? ? renewal&.finish_within(grace_seconds) : renewal&.cancel
    end

    private

    def advance
      collect_result if @renewal&.finished?
      step = @hold.next_step
      if step.nil?
        @renewal&.cancel
        @hold.log_loss
        return nil
      end
      return [@renewal.deadline, @hold.deadline].min if @renewal
      return step.instant if step.is_a?(RenewalPlan::WaitUntil)

      @renewal = @operations.start_renewal(@hold.lease, step.timeout_seconds) { @wake.set }
      [@renewal.deadline, @hold.deadline].min
    end

    def collect_result
      renewal = @renewal
      @renewal = nil
      @hold.renewed(renewal.result, quota_scarce: @operations.quota_scarce?)
    rescue LockOwnershipLostError => e
      @hold.lose(e)
    rescue StandardError => e
      @hold.failed(e)
    end
  end

  # Renews the leases of a client's holds in one background thread (SDK-6).
  #
  # The thread only decides; request threads send the renewals, so a renewal that hangs delays no other. It starts with
  # the first block, ends after an idle time, and keeps no process alive. An error in the plan or renewal of one lease
  # is a failed renewal of that lease. If the thread is killed, `guard.lost?` is still right, and the next block starts
  # another thread.
  class Renewer
    include ForkSafe

    IDLE_SECONDS_MAX = 30.0
    ERROR_PAUSE_SECONDS = 0.2

    # The background thread, as the clock watches it.
    Activity = Struct.new(:thread) do
      def over?
        !thread.alive?
      end
    end
    private_constant :Activity

    def initialize(operations, clock)
      @operations = operations
      @clock = clock
      reset_after_fork
    end

    # Renew `hold` until it is removed, left or lost.
    def add(hold)
      reset_after_fork
      @mutex.synchronize do
        @tasks << RenewalTask.new(hold, @operations, @clock, @wake)
        @wake.set
        start unless @thread&.alive?
      end
    end

    # Stop renewing it: no renewal starts or counts after this. Repeating it is harmless. See {RenewalTask#stop}.
    def remove(hold, grace_seconds = 0.0)
      reset_after_fork
      task = @mutex.synchronize do
        index = @tasks.index { |one| one.hold.equal?(hold) }
        index && @tasks.delete_at(index)
      end
      task&.stop(grace_seconds)
    end

    # Stop renewing all holds.
    def close
      reset_after_fork
      tasks = @mutex.synchronize do
        @closed = true
        @wake.set
        @tasks.slice!(0..)
      end
      tasks.each(&:stop)
    end

    private

    def reset
      @mutex = Mutex.new
      @wake = Signal.new
      @tasks = []
      @thread = nil
      @closed = false
    end

    def start
      @thread = Thread.new do
        Thread.current.report_on_exception = false
        # A new thread inherits its creator's interrupt mask. A thread that defers its own end would outlive the
        # process.
        Thread.handle_interrupt(Object => :immediate) { run }
      end
      @thread.name = "volcano-locks renewals"
      @clock.watch(Activity.new(@thread))
    end

    def run
      idle_since = nil
      loop do
        @wake.clear
        due = run_due_tasks
        idle_since = due.nil? ? idle_since || @clock.now : nil
        return if idle_since && end_if_idle(idle_since)

        @clock.wait(due || (idle_since + IDLE_SECONDS_MAX), @wake)
      rescue StandardError # a clock that fails: guards still compare with the deadline
        @wake.sleep(ERROR_PAUSE_SECONDS) { false }
      end
    end

    def run_due_tasks
      tasks = @mutex.synchronize { @tasks.dup }
      dues = tasks.map { |task| [task, task.run_due] }
      over = dues.select { |_task, due| due.nil? }.map(&:first)
      @mutex.synchronize { @tasks -= over } unless over.empty?
      dues.filter_map(&:last).min
    end

    def end_if_idle(idle_since)
      @mutex.synchronize do
        next false unless @tasks.empty? && (@closed || @clock.now >= idle_since + IDLE_SECONDS_MAX)

        @thread = nil
        true
      end
    end
  end
end
