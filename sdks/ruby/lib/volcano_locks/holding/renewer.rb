# frozen_string_literal: true

# The one background thread that keeps the leases of a client renewed (SDK-6).
#
# It only decides: each renewal is sent by a worker, so one that hangs delays no other. The thread starts with the first
# block, ends when there has been nothing to keep for a while, keeps no process alive, and does not crash: an error in
# planning or renewing one lease is a failed renewal of that lease. If somebody kills it, `guard.lost?` is right all the
# same, and the next block starts another.
module VolcanoLocks
  # One lease being kept: at most one renewal under way.
  class Beat
    ERROR_PAUSE_SECONDS = 0.2

    attr_reader :hold

    def initialize(hold, flows, clock, wake)
      @hold = hold
      @flows = flows
      @clock = clock
      @wake = wake
      @mutex = Mutex.new
      @renewal = nil
      @stopped = false
    end

    # Do what is due.
    #
    # @return [Float, nil] when to come again, at the latest; nil when it is over
    def tend
      @mutex.synchronize { @stopped ? nil : advance }
    rescue StandardError => e # whatever it was, the lease may still be alive (case 2)
      @renewal = nil
      @hold.failed(e)
      @clock.now + ERROR_PAUSE_SECONDS
    end

    # Renew no more; a renewal under way is given so many seconds of real time to end by itself, then dropped.
    def stop(patience_seconds = 0.0)
      renewal = @mutex.synchronize do
        @stopped = true
        @renewal.tap { @renewal = nil }
      end
      patience_seconds.positive? ? renewal&.end_within(patience_seconds) : renewal&.drop
    end

    private

    def advance
      collect if @renewal&.over?
      step = @hold.next_step
      if step.nil?
        @renewal&.drop
        return nil
      end
      return [@renewal.until, @hold.deadline].min if @renewal
      return step.until if step.is_a?(Heartbeat::Wait)

      @renewal = @flows.begin_renewal(@hold.lease, step.timeout_seconds) { @wake.set }
      [@renewal.until, @hold.deadline].min
    end

    def collect
      renewal = @renewal
      @renewal = nil
      @hold.renewed(renewal.lease)
    rescue LockOwnershipLostError => e
      @hold.lose(e)
    rescue StandardError => e
      @hold.failed(e)
    end
  end

  # Keeps any number of holds.
  class Keeper
    IDLE_SECONDS_MAX = 30.0
    ERROR_PAUSE_SECONDS = 0.2

    # The keeper's thread as a clock sees it.
    Activity = Struct.new(:thread) do
      def over?
        !thread.alive?
      end
    end
    private_constant :Activity

    def initialize(flows, clock)
      @flows = flows
      @clock = clock
      begin_here
    end

    # Keep `hold` until it is removed, left or lost.
    def add(hold)
      after_fork
      @mutex.synchronize do
        @beats << Beat.new(hold, @flows, @clock, @wake)
        @wake.set
        start unless @thread&.alive?
      end
    end

    # Keep it no more: no renewal is begun or believed after this. Harmless when repeated. See {Beat#stop}.
    def remove(hold, patience_seconds = 0.0)
      after_fork
      beat = @mutex.synchronize do
        index = @beats.index { |one| one.hold.equal?(hold) }
        index && @beats.delete_at(index)
      end
      beat&.stop(patience_seconds)
    end

    # Keep nothing any more.
    def close
      after_fork
      beats = @mutex.synchronize do
        @closed = true
        @wake.set
        @beats.slice!(0..)
      end
      beats.each(&:stop)
    end

    private

    def begin_here
      @pid = Process.pid
      @mutex = Mutex.new
      @wake = Signal.new
      @beats = []
      @thread = nil
      @closed = false
    end

    def after_fork
      begin_here if @pid != Process.pid
    end

    def start
      @thread = Thread.new do
        Thread.current.report_on_exception = false
        # A new thread begins with the mask of its maker; one that defers its own killing would outlive the process.
        Thread.handle_interrupt(Object => :immediate) { run }
      end
      @thread.name = "volcano-locks renewals"
      @clock.watch(Activity.new(@thread))
    end

    def run
      idle_since = nil
      loop do
        @wake.clear
        due = tend
        idle_since = due.nil? ? idle_since || @clock.now : nil
        return if idle_since && end_if_idle(idle_since)

        @clock.wait(due || (idle_since + IDLE_SECONDS_MAX), @wake)
      rescue StandardError # a clock that fails: guards compare with the deadline all the same
        @wake.sleep(ERROR_PAUSE_SECONDS) { false }
      end
    end

    def tend
      beats = @mutex.synchronize { @beats.dup }
      dues = beats.map { |beat| [beat, beat.tend] }
      over = dues.select { |_beat, due| due.nil? }.map(&:first)
      @mutex.synchronize { @beats -= over } unless over.empty?
      dues.filter_map(&:last).min
    end

    def end_if_idle(idle_since)
      @mutex.synchronize do
        next false unless @beats.empty? && (@closed || @clock.now >= idle_since + IDLE_SECONDS_MAX)

        @thread = nil
        true
      end
    end
  end
end
