# frozen_string_literal: true

# Driver: acquire with SET NX PX and release with a script, using Debian's redis-rb.
require "json"
require "redis"
require "securerandom"

RELEASE = 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end'
key = ENV.fetch("BENCH_KEY")
redis = Redis.new(port: Integer(ENV.fetch("BENCH_REDIS_PORT")))
release = redis.script(:load, RELEASE)

$stdin.each_line do |line|
  durations_ns = Array.new(Integer(line)) do
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
    token = SecureRandom.uuid
    raise "the lock is held" unless redis.set(key, token, nx: true, px: 30_000)
    raise "not released" unless redis.evalsha(release, keys: [key], argv: [token]) == 1

    Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began
  end
  $stdout.puts(JSON.generate(durations_ns))
  $stdout.flush
end
