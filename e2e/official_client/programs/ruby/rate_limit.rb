# frozen_string_literal: true

# Read a lock until the rate limit is reached.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

begin
  50.times { client.locks.get(key) }
  abort "no rate limit after 50 requests"
rescue VolcanoLocks::RateLimitedError => e
  puts "retry after #{e.retry_after} seconds"
end
