# frozen_string_literal: true

# A worker of the torture in Ruby. What it does and writes: ../worker_process.py.

require "json"
require "net/http"
require "volcano_locks"

SETTINGS = JSON.parse(ENV.fetch("TORTURE"))
TTL = SETTINGS.fetch("ttl_seconds")
RECORDS = File.open(SETTINGS.fetch("records"), "a")
$stopping = false

def now
  Process.clock_gettime(Process::CLOCK_BOOTTIME)
end

# One task's use of one lock, under one name of its owner.
class Job
  def initialize(client, owner)
    @locks = client.locks
    @owner = owner
    epoch = ((now - SETTINGS.fetch("began_at")) / SETTINGS.fetch("epoch_seconds")).floor
    @is_contended = rand < SETTINGS.fetch("contended")
    number = @is_contended ? 0 : 1 + rand(SETTINGS.fetch("keys"))
    @key = "busy.#{number}.#{epoch}"
    @wait = [0, 0, SETTINGS.fetch("wait_seconds")].sample
    @options = @wait.zero? ? { ttl: TTL } : { ttl: TTL, wait: @wait }
  end

  def run
    kind = rand
    if kind < 0.5 then use_block
    elsif kind < 0.9 then use_calls
    else read
    end
  end

  def read
    state = call("get", written: false) { @locks.get(@key) }
    write("get", state.held ? "held" : "free", *@times, fencing_token: state.fencing_token) if state
  end

  def use_calls
    lease = call("acquire") { @locks.acquire(@key, **@options) }
    return if lease.nil?

    rand(3).times do
      sleep(rand * 0.2)
      lease = call("renew") { @locks.renew(@key, lease, ttl: TTL) }
      return if lease.nil?
    end
    return if !@is_contended && rand < SETTINGS.fetch("abandoned")

    write("release", "unknown", now, nil) # this process may be killed before it knows the outcome
    call("release", "done") { @locks.release(@key, lease) }
  end

  def use_block
    sent_at = now
    held = nil
    left_at = nil
    @locks.with_lock(@key, **@options) do |guard|
      held = guard
      write("acquire", "granted", sent_at, now, fencing_token: guard.fencing_token)
      hold(guard)
      left_at = now
      write("release", "unknown", left_at, nil)
    end
    write("release", held.release_error ? "unknown" : "done", left_at, now)
  rescue VolcanoLocks::LockOwnershipLostError
    return write("acquire", "lost", sent_at, now) if held.nil?

    sleep SETTINGS.fetch("late_seconds")
    write_fenced(held.fencing_token) # refused if the next holder has written
  rescue VolcanoLocks::LockHeldError
    write("acquire", "held", sent_at, now)
  rescue VolcanoLocks::TransportError, VolcanoLocks::UnavailableError
    write("acquire", "unknown", sent_at, now)
  end

  def hold(guard)
    is_long = !@is_contended && rand < SETTINGS.fetch("long")
    ends_at = now + (is_long ? TTL * (1 + rand) : 0.2 * rand)
    first = last = nil
    while now < ends_at && !$stopping
      before = now
      break if guard.lost?

      first ||= now
      last = before
      first = believed(guard, first, last) if last - first > 1
      write_fenced(guard.fencing_token)
      sleep 0.05
    end
    believed(guard, first, last) if first && last > first
  end

  def believed(guard, first, last)
    write("renew", "granted", first, first, fencing_token: guard.fencing_token, ttl_seconds: last - first)
    last
  end

  def write_fenced(token)
    Net::HTTP.get(URI("#{SETTINGS.fetch('fence')}/#{@key}/#{token}"))
  end

  def call(operation, success = "granted", written: true)
    sent_at = now
    result = nil
    outcome =
      begin
        result = yield || true
        success
      rescue VolcanoLocks::LockHeldError then "held"
      rescue VolcanoLocks::LockOwnershipLostError then operation == "release" ? "refused" : "lost"
      rescue VolcanoLocks::TransportError, VolcanoLocks::UnavailableError then "unknown"
      end
    @times = [sent_at, now]
    token = result.fencing_token if result.respond_to?(:fencing_token)
    write(operation, outcome, *@times, fencing_token: token) if written || result.nil?
    result
  end

  def write(operation, outcome, sent_at, ended_at, **more)
    record = {
      client: @owner.split("#").first,
      operation: operation,
      key: @key,
      owner: @owner,
      sent_at: sent_at,
      responded_at: outcome == "unknown" ? nil : ended_at,
      ended_at: ended_at,
      outcome: outcome,
      ttl_seconds: TTL,
      wait_seconds: operation == "acquire" ? @wait : 0,
      **more
    }
    RECORDS.syswrite("#{JSON.generate(record)}\n")
  end
end

def work(client, name)
  number = 0
  until $stopping
    number += 1
    Job.new(client, "#{name}##{number}").run
    sleep(rand * SETTINGS.fetch("pause_seconds"))
  end
end

Thread.abort_on_exception = true
client = VolcanoLocks::Client.new(timeout: SETTINGS.fetch("timeout_seconds"))
tasks = Array.new(SETTINGS.fetch("tasks")) do |number|
  Thread.new { work(client, "#{SETTINGS.fetch('name')}.#{number}") }
end
$stdin.read
$stopping = true
tasks.each(&:join)
