# frozen_string_literal: true

# Driver: acquire and release with the Ruby client.
require "json"
require "volcano_locks"

key = ENV.fetch("BENCH_KEY")
locks = VolcanoLocks::Client.new(api_url: ENV.fetch("BENCH_URL"), service_key: ENV.fetch("BENCH_SERVICE_KEY")).locks

$stdin.each_line do |line|
  durations_ns = Array.new(Integer(line)) do
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    locks.release(key, locks.acquire(key, ttl: 30))
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began
  end
  $stdout.puts(JSON.generate(durations_ns))
  $stdout.flush
end
