# frozen_string_literal: true

# A worker for the tests of paused holders. Its protocol: ../worker_process.py.

require "json"
require "open3"
require "volcano_locks"

$stdout.sync = true

def report(what)
  puts JSON.generate(what)
end

def work(guard)
  report(held: guard.fencing_token)
  environment = { "FENCING_TOKEN" => guard.fencing_token.to_s }
  $stdin.each_line do |line|
    report(lost: guard.lost?)
    output, status = Open3.capture2e(environment, "sh", "-c", line)
    report(exit_code: status.exitstatus, output: output, lost: guard.lost?)
  end
end

client = VolcanoLocks::Client.new
begin
  client.locks.with_lock(ENV.fetch("FENCING_KEY"), ttl: Integer(ENV.fetch("FENCING_TTL"))) { |guard| work(guard) }
  report(ended: "held")
rescue VolcanoLocks::LockHeldError
  sleep 0.1
  retry
rescue VolcanoLocks::LockOwnershipLostError
  report(ended: "lost")
end
