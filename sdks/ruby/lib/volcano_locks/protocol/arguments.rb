# frozen_string_literal: true

require "securerandom"

module VolcanoLocks
  # Checks arguments before anything is sent. A wrong type is a `TypeError`, a wrong value an `ArgumentError`.
  module Arguments
    TTL_SECONDS_MIN = 5
    TTL_SECONDS_MAX = 7_776_000
    RENEW_EVERY_SECONDS_MIN = 1
    FENCING_TOKEN_MAX = (2**53) - 1
    REASON_CHARACTERS_MAX = 200
    SHOWN_CHARACTERS_MAX = 300
    KEY = /\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z/
    UUID = /\A\h{8}(-\h{4}){3}-\h{12}\z/
    # Control and format characters, and line separators.
    INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/
    private_constant :KEY, :UUID, :INVISIBLE

    module_function

    # @return [String] `key` if it is a valid lock key
    def checked_key(key)
      raise TypeError, "key must be a String, got #{key.class}" unless key.is_a?(String)
      return key.dup.freeze if matches?(KEY, key)

      raise ArgumentError, "key must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit, " \
                           "got #{shown(key)}"
    end

    # @return [Integer] `ttl` if it is a valid TTL in whole seconds. A Duration of ActiveSupport passes for an Integer
    #   and is converted to one (case 80)
    def checked_ttl(ttl)
      raise TypeError, "ttl must be an Integer of seconds, got #{ttl.class}" unless ttl.is_a?(Integer)

      ttl = ttl.to_i
      return ttl if ttl.between?(TTL_SECONDS_MIN, TTL_SECONDS_MAX)

      raise ArgumentError, "ttl must be from #{TTL_SECONDS_MIN} to #{TTL_SECONDS_MAX} seconds, got #{ttl}"
    end

    # @return [Float] `seconds` if it is a number from 0 to `max`; nil counts as 0
    def checked_seconds(name, seconds, max: Float::INFINITY)
      return 0.0 if seconds.nil?
      unless seconds.is_a?(Integer) || seconds.is_a?(Float) || seconds.is_a?(Rational)
        raise TypeError, "#{name} must be a number of seconds, got #{seconds.class}"
      end
      return seconds.to_f if seconds >= 0 && seconds <= max

      limit = max == Float::INFINITY ? "at least 0 seconds (Float::INFINITY for no limit)" : "from 0 to #{max} seconds"
      raise ArgumentError, "#{name} must be #{limit}, got #{seconds}"
    end

    # @return [Float, nil] `renew_every` if it is nil or at most a third of `ttl_seconds` (SDK-3)
    def checked_renew_every(renew_every, ttl_seconds)
      return nil if renew_every.nil?

      seconds = checked_seconds("renew_every", renew_every)
      return seconds if seconds.between?(RENEW_EVERY_SECONDS_MIN, ttl_seconds / 3.0)

      raise ArgumentError, "renew_every must be from #{RENEW_EVERY_SECONDS_MIN} to a third of the ttl " \
                           "(#{(ttl_seconds / 3.0).round(1)} seconds), got #{renew_every}"
    end

    # @return [Integer, nil] the fencing token of one lease, or nil (SDK-27)
    def checked_fencing_token(value)
      return nil if value.nil?
      raise TypeError, "fencing_token must be an Integer, got #{value.class}" unless value.is_a?(Integer)
      return value.to_i if safe_integer?(value)

      raise ArgumentError, "fencing_token must be from 1 to #{FENCING_TOKEN_MAX}, got #{value}"
    end

    # @return [String, nil] the reason of a force release in UTF-8, nil if it is nil or empty (SDK-27)
    def checked_reason(reason)
      return nil if reason.nil?
      raise TypeError, "reason must be a String, got #{reason.class}" unless reason.is_a?(String)

      text = reason.valid_encoding? ? reason.encode(Encoding::UTF_8) : "\0"
      return (text.empty? ? nil : text.freeze) if text.length <= REASON_CHARACTERS_MAX && !INVISIBLE.match?(text)

      raise ArgumentError, "reason must be at most #{REASON_CHARACTERS_MAX} characters without control and invisible " \
                           "format characters, got #{shown(reason)}"
    rescue EncodingError
      raise ArgumentError, "reason must be text that UTF-8 can represent, got #{shown(reason)}"
    end

    # @return [String] `value`, spelled as given, if it is a UUID; the error does not show it (SDK-8)
    def checked_uuid(name, value)
      raise TypeError, "#{name} must be a UUID as a String, got #{value.class}" unless value.is_a?(String)
      return value.dup.freeze if matches?(UUID, value)

      raise ArgumentError, "#{name} must be a UUID (8-4-4-4-12 hex digits), got a string of #{value.length} characters"
    end

    # @return [Lease] `lease` if it is a lease of the lock `key`; `call` shows the call form (SDK-17)
    def checked_lease(key, lease, call)
      raise TypeError, "key must be a String, got #{key.class}: call #{call}" unless key.is_a?(String)
      raise TypeError, "lease must be a #{Lease}, got #{lease.class}: call #{call}" unless lease.is_a?(Lease)
      return lease if checked_key(key) == lease.key

      raise ArgumentError, "lease must be a lease of the lock #{key.inspect}, got a lease of #{lease.key.inspect}: " \
                           "call #{call} with the key and the lease of the same lock"
    end

    # @return [String] the caller's request id, or a new one
    def request_id_or_new(request_id)
      request_id.nil? ? new_uuid : checked_uuid("request_id", request_id)
    end

    # @return [String] a new owner token or request id
    def new_uuid
      SecureRandom.uuid.freeze
    end

    # @return [Boolean] whether `text` is valid and in an encoding that contains ASCII, which UTF-16 does not
    def readable?(text)
      text.encoding.ascii_compatible? && text.valid_encoding?
    end

    # @return [Boolean] whether `text` is readable and matches `pattern`
    def matches?(pattern, text)
      readable?(text) && pattern.match?(text)
    end

    # @return [String] `text` for an error about it
    def shown(text)
      wide = text.encoding.ascii_compatible? ? "" : " in the encoding #{text.encoding}"
      "#{text[0, SHOWN_CHARACTERS_MAX].inspect}#{wide}"
    end

    # @return [Boolean] whether it is an integer that every language represents exactly (SDK-7)
    def safe_integer?(value)
      value.is_a?(Integer) && value.between?(1, FENCING_TOKEN_MAX)
    end
  end
end
