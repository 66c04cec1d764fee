# frozen_string_literal: true

# A worker for the story of the stopped holder. What it reads and tells: ../story.py.

require "json"
require "open3"
require "volcano_locks"

$stdout.sync = true

def tell(what)
  puts JSON.generate(what)
end

def work(guard)
  tell(held: guard.fencing_token)
  environment = { "FENCING_TOKEN" => guard.fencing_token.to_s }
  $stdin.each_line do |line|
    tell(lost: guard.lost?)
    said, status = Open3.capture2e(environment, "sh", "-c", line)
    tell(exit_code: status.exitstatus, said: said, lost: guard.lost?)
  end
end

client = VolcanoLocks::Client.new
begin
  client.locks.with_lock(ENV.fetch("FENCING_KEY"), ttl: Integer(ENV.fetch("FENCING_TTL"))) { |guard| work(guard) }
  tell(ended: "held")
rescue VolcanoLocks::LockHeldError
  sleep 0.1
  retry
rescue VolcanoLocks::LockOwnershipLostError
  tell(ended: "lost")
end
