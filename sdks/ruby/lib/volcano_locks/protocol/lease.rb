# frozen_string_literal: true

module VolcanoLocks
  # The lease of one acquisition, immutable. Its owner token is a secret and does not appear in `inspect`.
  class Lease
    include Value
    include Redacted

    FIELDS = %i[key ttl_seconds expires_at fencing_token].freeze
    FIXED = %i[key token deadline].freeze
    RECORD_FIELDS = %w[key token ttl_seconds expires_at fencing_token].freeze
    private_constant :FIXED, :RECORD_FIELDS

    # @return [String] the lock's key
    attr_reader :key
    # @return [String] the owner token: a secret
    attr_reader :token
    # @return [Integer] the TTL requested
    attr_reader :ttl_seconds
    # @return [Time] when the lease ends by the server's clock; for display only
    attr_reader :expires_at
    # @return [Integer] the number to send with every write
    attr_reader :fencing_token
    # @return [Float, nil] the instant on this client's clock when the lease ends for its holder; nil for a lease
    #   loaded from a record
    attr_reader :deadline

    def initialize(key:, token:, ttl_seconds:, expires_at:, fencing_token:, deadline: nil)
      @key = key
      @token = token
      @ttl_seconds = ttl_seconds
      @expires_at = expires_at
      @fencing_token = fencing_token
      @deadline = deadline
      freeze
    end

    # @return [Hash] everything needed to renew or release it elsewhere. It contains the secret token: store it as a
    #   secret
    def to_record
      {
        "key" => key,
        "token" => token,
        "ttl_seconds" => ttl_seconds,
        "expires_at" => Messages.date_text(expires_at),
        "fencing_token" => fencing_token
      }
    end

    # @param record [Hash] the result of `to_record`; keys may be strings or symbols
    # @return [Lease]
    # @raise [ArgumentError, TypeError] naming the field that is wrong
    def self.from_record(record)
      raise TypeError, "lease record must be a Hash, got #{record.class}" unless record.is_a?(Hash)

      fields = record.transform_keys(&:to_s)
      missing = RECORD_FIELDS.reject { |field| fields.key?(field) }
      raise ArgumentError, "lease record lacks #{missing.join(', ')}" unless missing.empty?

      new(
        key: Arguments.checked_key(fields["key"]),
        token: Arguments.checked_uuid("token", fields["token"]),
        ttl_seconds: Arguments.checked_ttl(fields["ttl_seconds"]),
        expires_at: Messages.parse_date(fields["expires_at"]),
        fencing_token: checked_fencing_token(fields["fencing_token"])
      )
    end

    def self.checked_fencing_token(value)
      return value if Arguments.safe_integer?(value)

      raise ArgumentError, "lease record: fencing_token must be an integer from 1 to #{Arguments::FENCING_TOKEN_MAX}"
    end
    private_class_method :checked_fencing_token

    # A copy of the same acquisition: it keeps the key, the owner token and the deadline.
    #
    # @return [Lease]
    # @raise [ArgumentError] if a change names one of those three fields or an unknown field
    def with(**changes)
      fixed = changes.keys & FIXED
      return super(token: token, deadline: deadline, **changes) if fixed.empty?

      raise ArgumentError, "#{fixed.join(', ')} of a lease cannot be changed: acquire and renew set it. Change " \
                           "#{(FIELDS - FIXED).join(', ')}, or acquire another lease"
    end

    protected

    # Compares the token without regard to case. The deadline belongs to this process's clock and is not compared.
    def identity
      [*super, token.downcase]
    end
  end

  # The result of `get`. If the lock is not held, an acquire would succeed now and the other fields are nil.
  class LockState
    include Value

    FIELDS = %i[held expires_at fencing_token].freeze

    # @return [Boolean] whether an acquire would be refused
    attr_reader :held
    alias held? held
    # @return [Time, nil] when the lease ends
    attr_reader :expires_at
    # @return [Integer, nil] its fencing token
    attr_reader :fencing_token

    def initialize(held:, expires_at: nil, fencing_token: nil)
      @held = held
      @expires_at = expires_at
      @fencing_token = fencing_token
      freeze
    end
  end
end
