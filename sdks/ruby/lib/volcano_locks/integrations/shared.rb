# frozen_string_literal: true

require_relative "../../volcano_locks"

module VolcanoLocks
  # What the integrations with Active Job, Sidekiq, Rake and Rails share. Require the one that you use, such as
  # `volcano_locks/active_job`; none of them loads its framework.
  module Integrations
    @mutex = Mutex.new

    class << self
      # @return [Client] the client of all integrations; by default one with the settings of `VOLCANO_API_URL` and
      #   `VOLCANO_SERVICE_KEY`. A forked child may use its parent's
      def client
        @mutex.synchronize { @client ||= Client.new }
      end

      # @param client [Client, nil] another client, or nil for a new default
      def client=(client)
        @mutex.synchronize { @client = client }
      end
    end

    # How the runs of one kind of job exclude each other. `perform` runs one of them.
    class ExclusiveJob
      ON_HELD = %i[skip retry raise].freeze
      RETRIES_MAX = 1_000

      # @param on_held [Symbol] `skip`, `retry` later, or `raise` the {LockHeldError}
      # @param retry_every [Numeric] about so many seconds later
      # @param retries_max [Integer] how often a job is sent again before its LockHeldError is raised
      # @yield the job's arguments, for its key
      def initialize(ttl: 60, on_held: :skip, retry_every: 10, retries_max: RETRIES_MAX, hold_at_least: nil, &key)
        raise ArgumentError, "exclusive_by needs a block that returns the key" unless key
        unless ON_HELD.include?(on_held)
          raise ArgumentError, "on_held must be :skip, :retry or :raise, got #{on_held.inspect}"
        end

        @lock = { ttl: Arguments.checked_ttl(ttl), hold_at_least: hold_at_least }
        @on_held = on_held
        @retry_every = retry_every
        @retries_max = retries_max
        @key = key
      end

      # Runs the block under the job's lock. A job that was started before is not skipped: its earlier run may have
      # died and left the lock to expire.
      #
      # @param started [Boolean] whether the job was started before
      # @param retries [Integer] how often it was sent again because its key was held
      # @param again [#call] sends the job again, to run so many seconds later
      # @return [Object, nil] the block's value; nil if the key was held
      def perform(arguments, started:, retries:, again:)
        entered = false
        Integrations.client.locks.with_lock(@key.call(*arguments), **@lock) do |guard|
          entered = true
          yield guard
        end
      rescue LockHeldError
        raise if entered || @on_held == :raise
        return nil if @on_held == :skip && !started && retries.zero?
        raise if retries >= @retries_max

        again.call(@retry_every * (0.75 + (rand / 2)))
        nil
      end
    end
  end
end
