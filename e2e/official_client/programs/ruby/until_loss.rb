# frozen_string_literal: true

# Hold a lock until it is lost.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

begin
  client.locks.with_lock(key, ttl: 5) do |guard|
    puts "holding"
    $stdout.flush
    guard.wait_lost
  end
rescue VolcanoLocks::LockOwnershipLostError
  puts "lost"
end
