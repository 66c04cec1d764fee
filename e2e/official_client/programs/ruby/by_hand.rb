# frozen_string_literal: true

# Acquire, renew and release by hand.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

lease = client.locks.acquire(key, ttl: 30)
begin
  renewed = client.locks.renew(key, lease, ttl: 60)
  puts "same token: #{renewed.fencing_token == lease.fencing_token}"
ensure
  client.locks.release(key, lease)
end
puts "released"
