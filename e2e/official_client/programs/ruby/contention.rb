# frozen_string_literal: true

# Acquire a lock that is held.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

lease = client.locks.acquire(key, ttl: 30)
begin
  client.locks.acquire(key, ttl: 30)
rescue VolcanoLocks::LockHeldError
  puts "held elsewhere"
ensure
  client.locks.release(key, lease)
end
