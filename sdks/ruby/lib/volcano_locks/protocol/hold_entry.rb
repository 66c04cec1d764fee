# frozen_string_literal: true

module VolcanoLocks
  # One hold of a lock, from its acquire to its end. What is unknown or does not apply is nil. It contains no
  # owner token.
  class HoldEntry
    include Value

    FIELDS = %i[key fencing_token holder key_id key_name address client began waited_seconds began_at renewals
                renewed_at ended ended_by reason ended_at expires_at held_seconds].freeze

    # @return [String] the lock's key
    attr_reader :key
    # @return [Integer] the lease's fencing token
    attr_reader :fencing_token
    # @return [String, nil] the label of its holder
    attr_reader :holder
    # @return [String, nil] the service key that acquired it
    attr_reader :key_id, :key_name
    # @return [String, nil] the client's address and its User-Agent
    attr_reader :address, :client
    # @return [String, nil] `free`, `taken_over` or `waited`
    attr_reader :began
    # @return [Float, nil] how long the acquire was queued
    attr_reader :waited_seconds
    # @return [Time] when the hold began
    attr_reader :began_at
    # @return [Integer, nil] how often the lease got a new expiry
    attr_reader :renewals
    # @return [Time, nil] when it was last renewed
    attr_reader :renewed_at
    # @return [String, nil] nil while it lasts; then `released`, `expired` or `forced`
    attr_reader :ended
    # @return [String, nil] the service key that forced it, and its reason
    attr_reader :ended_by, :reason
    # @return [Time, nil] when it ended
    attr_reader :ended_at
    # @return [Time] the last expiry of its lease
    attr_reader :expires_at
    # @return [Float] how long it lasted, or lasts so far
    attr_reader :held_seconds

    def initialize(**fields)
      raise ArgumentError, "unknown field" unless (fields.keys - FIELDS).empty?

      FIELDS.each { |name| instance_variable_set(:"@#{name}", fields[name]) }
      freeze
    end
  end
end
