# frozen_string_literal: true

module VolcanoLocks
  # The public state of one lock. It contains no owner token.
  class LockView
    include Value

    FIELDS = %i[key held holder acquired_at renewed_at expires_at ttl_seconds fencing_token waiters
                queue].freeze

    # @return [String] the lock's key
    attr_reader :key
    # @return [Boolean] if false, an acquire would succeed now, and the fields of the lease are nil except
    #   `fencing_token`
    attr_reader :held
    alias held? held
    # @return [String, nil] the label of its holder
    attr_reader :holder
    # @return [Time, nil] when the lease was acquired
    attr_reader :acquired_at
    # @return [Time, nil] when the lease was last renewed
    attr_reader :renewed_at
    # @return [Time, nil] when the lease ends
    attr_reader :expires_at
    # @return [Integer, nil] the TTL last requested
    attr_reader :ttl_seconds
    # @return [Integer, nil] the latest fencing token, if known
    attr_reader :fencing_token
    # @return [Integer] how many acquires wait for the lock
    attr_reader :waiters
    # @return [Array<String, nil>] the labels of the first waiters on the server's node, the next one first; only
    #   {Locks#view} fills it
    attr_reader :queue

    def initialize(key:, held:, holder: nil, acquired_at: nil, renewed_at: nil, expires_at: nil, ttl_seconds: nil,
                   fencing_token: nil, waiters: 0, queue: [])
      @key = key
      @held = held
      @holder = holder
      @acquired_at = acquired_at
      @renewed_at = renewed_at
      @expires_at = expires_at
      @ttl_seconds = ttl_seconds
      @fencing_token = fencing_token
      @waiters = waiters
      @queue = queue.freeze
      freeze
    end
  end
end
