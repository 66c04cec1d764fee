# frozen_string_literal: true

# Jobs of the tests, for Sidekiq processes: `sidekiq -r ./jobs.rb`, and for the test that sends them.
require "sidekiq"
require "active_job"
require "volcano_locks/active_job"
require "volcano_locks/sidekiq"

TTL = 5
Sidekiq.configure_server do |config|
  config.average_scheduled_poll_interval = 1
  config.server_middleware { |chain| chain.add VolcanoLocks::Sidekiq::Middleware }
end
ActiveJob::Base.queue_adapter = :sidekiq
ActiveJob::Base.logger = Logger.new(nil)

def note(what, job)
  File.write(ENV.fetch("JOURNAL"), "#{what} #{job} #{Process.pid}\n", mode: "a")
end

# Works for so many seconds, or, if they are negative, until the test creates the file that ends the job.
def work(job, seconds, guard)
  note("start", job)
  sleep(seconds) if seconds >= 0
  sleep(0.05) until seconds >= 0 || File.exist?("#{ENV.fetch('JOURNAL')}.go-on")
  guard.raise_if_lost!
  note("end", job)
end

class NativeJob
  include Sidekiq::Worker
  include VolcanoLocks::Sidekiq

  def perform(job, seconds)
    work(job, seconds, guard)
  end
end

class NativeSkipping < NativeJob
  exclusive_by(ttl: TTL) { |job, _| "job-#{job}" }
end

class NativeRetrying < NativeJob
  exclusive_by(ttl: TTL, on_held: :retry, retry_every: 1) { |job, _| "job-#{job}" }
end

class NativeRaising < NativeJob
  sidekiq_options retry: 5
  sidekiq_retry_in { 1 }
  exclusive_by(ttl: TTL, on_held: :raise) { |job, _| "job-#{job}" }
end

class ActiveBase < ActiveJob::Base
  include VolcanoLocks::ActiveJob

  def perform(job, seconds)
    work(job, seconds, guard)
  end
end

class ActiveSkipping < ActiveBase
  exclusive_by(ttl: TTL) { |job, _| "job-#{job}" }
end

class ActiveRetrying < ActiveBase
  exclusive_by(ttl: TTL, on_held: :retry, retry_every: 1) { |job, _| "job-#{job}" }
end

class ActiveRaising < ActiveBase
  retry_on VolcanoLocks::LockHeldError, wait: 1, attempts: 20
  exclusive_by(ttl: TTL, on_held: :raise) { |job, _| "job-#{job}" }
end

# Sends `CLASS JOB SECONDS` of each argument.
if $PROGRAM_NAME == __FILE__
  ARGV.each do |call|
    name, job, seconds = call.split
    kind = Object.const_get(name)
    kind.respond_to?(:perform_async) ? kind.perform_async(job, seconds.to_f) : kind.perform_later(job, seconds.to_f)
  end
end
