# frozen_string_literal: true

require "rake"
require_relative "integrations/shared"

module VolcanoLocks
  # Rake: tasks that run on one host at a time.
  #
  #     exclusive_task(:rollup, ttl: 60, on_held: :skip, hold_at_least: 60) do |_task, _arguments, guard|
  #       write_report(fencing_token: guard.fencing_token)
  #     end
  #
  # The exit codes are those of `volcano-locks run`: 75 if the lock is held, 76 if the lease was lost.
  module Rake
    NOT_ACQUIRED = 75
    OWNERSHIP_LOST = 76
    ON_HELD = %i[fail skip wait].freeze
    @guarded = []

    # The lock was held. A LockHeldError of the task itself is an error like any other.
    class NotAcquired < StandardError; end
    private_constant :NotAcquired

    # Like `task`, but the block runs while its lock is held. Prerequisites run before, without the lock.
    #
    # @param key [String, nil] the lock's key; by default `rake-` and the task's name, with `-` for other characters
    # @param on_held [Symbol] `:fail` ends the program with the exit code 75, `:skip` goes on, `:wait` waits
    # @param wait [Numeric] how many seconds `:wait` waits at most
    # @return [::Rake::Task]
    # @param ttl [Integer] length of a lease in seconds; the lease is renewed while the block runs
    def exclusive_task(*arguments, key: nil, ttl: 60, on_held: :fail, wait: Float::INFINITY, hold_at_least: nil,
                       **prerequisites, &body)
      raise ArgumentError, "exclusive_task needs a block" unless body

      arguments << prerequisites unless prerequisites.empty? # `exclusive_task(rollup: :environment)`
      lock = { ttl: ttl, on_held: on_held, wait: wait, hold_at_least: hold_at_least }
      task(*arguments) do |task, given|
        Rake.exclusively(key || Rake.key_of(task.name), **lock) { |guard| body.call(task, given, guard) }
      end
    end

    class << self
      # Let the actions of an existing task run under a lock, for example `db:migrate`.
      #
      # @param name [String] the task's name
      # @return [::Rake::Task]
      def guard(name, key: key_of(name), **lock)
        task = ::Rake::Task[name]
        actions = task.actions.dup
        task.actions.clear
        task.enhance { |one, given| exclusively(key, **lock) { actions.each { |action| action.call(one, given) } } }
      end

      # Run the block under the lock. Guarded tasks may invoke each other: an inner one with the same key runs on.
      #
      # @api private
      def exclusively(key, ttl: 60, on_held: :fail, wait: Float::INFINITY, hold_at_least: nil, &body)
        unless ON_HELD.include?(on_held)
          raise ArgumentError, "on_held must be :fail, :skip or :wait, got #{on_held.inspect}"
        end
        return yield(@guarded.assoc(key).last) if @guarded.assoc(key)

        wait = nil unless on_held == :wait
        hold(key, { ttl: ttl, wait: wait, hold_at_least: hold_at_least }, &body)
      rescue NotAcquired => e
        return warn("skipped: #{e.cause.message}") if on_held == :skip

        end_with(NOT_ACQUIRED, "not run: #{e.cause.message}")
      rescue LockOwnershipLostError => e
        end_with(OWNERSHIP_LOST, "stopped: #{e.message}")
      end

      # @api private
      def key_of(name)
        "rake-#{name.to_s.gsub(/[^A-Za-z0-9._:-]/, '-')}"
      end

      private

      def hold(key, lock)
        entered = false
        Integrations.client.locks.with_lock(key, **lock) do |guard|
          entered = true
          @guarded << [key, guard]
          yield guard
        ensure
          @guarded.pop
        end
      rescue LockHeldError
        entered ? raise : raise(NotAcquired)
      end

      def end_with(code, message)
        warn(message)
        exit(code)
      end
    end
  end
end

extend VolcanoLocks::Rake # rubocop:disable Style/MixinUsage -- as Rake does with its own words
