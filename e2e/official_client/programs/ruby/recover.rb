# frozen_string_literal: true

# Recover an uncertain acquire with the same ids.
require "securerandom"
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new(timeout: 2)
ids = { token: SecureRandom.uuid, request_id: SecureRandom.uuid }

begin
  lease = client.locks.acquire(key, ttl: 30, **ids)
rescue VolcanoLocks::TransportError, VolcanoLocks::UnavailableError
  puts "uncertain"
  lease = client.locks.acquire(key, ttl: 30, **ids)
end
puts "recovered"
client.locks.release(key, lease)
puts "released"
