# frozen_string_literal: true

# Hold a lock for a block.
require "volcano_locks"

key = ARGV.fetch(0)
client = VolcanoLocks::Client.new

client.locks.with_lock(key, ttl: 30) do |guard|
  puts "fencing token #{guard.lease.fencing_token}"
  puts "lost: #{guard.lost?}"
end
puts "held: #{client.locks.get(key).held}"
