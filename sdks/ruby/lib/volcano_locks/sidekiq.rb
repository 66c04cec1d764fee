# frozen_string_literal: true

require_relative "integrations/shared"

module VolcanoLocks
  # Sidekiq: a job that runs at most once at a time per key, over all processes.
  #
  #     Sidekiq.configure_server do |config|
  #       config.server_middleware { |chain| chain.add VolcanoLocks::Sidekiq::Middleware }
  #     end
  #
  #     class InvoiceJob
  #       include Sidekiq::Worker
  #       include VolcanoLocks::Sidekiq
  #       exclusive_by(ttl: 60, on_held: :retry) { |customer| "invoice-#{customer}" }
  #     end
  module Sidekiq
    RETRIES = "volcano_locks_retries"

    # What a job class gets.
    module ClassMethods
      # @return [Integrations::ExclusiveJob, nil]
      attr_reader :exclusive_job

      # Declares the lock of the job's runs. The block gets the job's arguments and returns the key. If it is held,
      # `on_held` decides: `:skip` (the default) ends the job, `:retry` schedules it again about `retry_every` seconds
      # later (10; at most `retries_max` times, 1,000), and `:raise` raises the {LockHeldError}, for Sidekiq's retries.
      #
      # @see Integrations::ExclusiveJob#initialize
      def exclusive_by(**options, &key)
        @exclusive_job = Integrations::ExclusiveJob.new(**options, &key)
      end

      # @api private
      def inherited(job)
        super
        job.instance_variable_set(:@exclusive_job, exclusive_job)
      end
    end

    # @api private
    def self.included(job)
      job.extend(ClassMethods)
    end

    # @return [LockGuard, nil] the guard of the job's lock, while the job runs
    attr_accessor :guard

    # The server middleware. A job that declares `exclusive_by` fails in a server without it.
    class Middleware
      # @api private
      def call(worker, job, _queue)
        exclusive = worker.class.respond_to?(:exclusive_job) && worker.class.exclusive_job
        return yield unless exclusive

        retries = job[RETRIES].to_i
        again = lambda do |seconds|
          ::Sidekiq::Client.push(job.merge("at" => Time.now.to_f + seconds, RETRIES => retries + 1))
        end
        exclusive.perform(job["args"], started: job.key?("retry_count"), retries: retries, again: again) do |guard|
          worker.guard = guard
          yield
        end
      end
    end
  end
end
