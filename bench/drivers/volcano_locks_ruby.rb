# frozen_string_literal: true

# Acquire and release by this project's Ruby client.
require "json"
require "volcano_locks"

key = ENV.fetch("BENCH_KEY")
locks = VolcanoLocks::Client.new(api_url: ENV.fetch("BENCH_URL"), service_key: ENV.fetch("BENCH_SERVICE_KEY")).locks

$stdin.each_line do |line|
  taken = Array.new(Integer(line)) do
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    locks.release(key, locks.acquire(key, ttl: 30))
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began
  end
  $stdout.puts(JSON.generate(taken))
  $stdout.flush
end
