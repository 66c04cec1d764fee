# frozen_string_literal: true

# Read a lock, force its release, and check that a release by its former owner is refused once another owner holds it.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

lease = client.locks.acquire(key, ttl: 30)
puts "held: #{client.locks.get(key).held}"
client.locks.force_release(key)
puts "held: #{client.locks.get(key).held}"

other = client.locks.acquire(key, ttl: 30)
begin
  client.locks.release(key, lease)
rescue VolcanoLocks::LockOwnershipLostError
  puts "lost: true"
ensure
  client.locks.release(key, other)
end
