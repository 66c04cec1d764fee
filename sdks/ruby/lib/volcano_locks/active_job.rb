# frozen_string_literal: true

require_relative "integrations/shared"

module VolcanoLocks
  # Active Job: a job that runs at most once at a time per key, over all workers and with every queue adapter.
  #
  #     class InvoiceJob < ApplicationJob
  #       include VolcanoLocks::ActiveJob
  #       exclusive_by(ttl: 60, on_held: :retry) { |customer| "invoice-#{customer}" }
  #
  #       def perform(customer)
  #         write(customer, fencing_token: guard.fencing_token)
  #       end
  #     end
  module ActiveJob
    # What a job class gets.
    module ClassMethods
      # Declares the lock of the job's runs. The block gets the job's arguments and returns the key. If it is held,
      # `on_held` decides: `:skip` (the default) ends the job, `:retry` enqueues it again about `retry_every` seconds
      # later (10; at most `retries_max` times, 1,000), and `:raise` raises the {LockHeldError}, for `retry_on`.
      #
      # @see Integrations::ExclusiveJob#initialize
      def exclusive_by(**options, &key)
        exclusive = Integrations::ExclusiveJob.new(**options, &key)
        around_perform { |job, block| job.send(:perform_exclusively, exclusive, block) }
      end
    end

    # @api private
    def self.included(job)
      job.extend(ClassMethods)
    end

    # @return [LockGuard, nil] the guard of the job's lock, while the job runs
    attr_reader :guard

    # @api private
    def serialize
      super.merge("volcano_locks_retries" => @exclusive_retries.to_i)
    end

    # @api private
    def deserialize(job_data)
      super
      @exclusive_retries = job_data["volcano_locks_retries"].to_i
    end

    private

    def perform_exclusively(exclusive, block)
      again = lambda do |seconds|
        @exclusive_retries = @exclusive_retries.to_i + 1
        self.executions -= 1 # it has not run
        retry_job(wait: seconds)
      end
      exclusive.perform(arguments, started: executions > 1, retries: @exclusive_retries.to_i, again: again) do |guard|
        @guard = guard
        block.call
      end
    end
  end
end
