# frozen_string_literal: true

module VolcanoLocks
  # Makes the client's results value objects (SDK-22): frozen, compared by content, usable in pattern matching, and
  # printed without secrets.
  #
  # An including class lists its public fields in `FIELDS`. They are keyword arguments of its `new`, which freezes the
  # object. The owner token is not among them.
  module Value
    # @return [Hash{Symbol => Object}] the fields, without the owner token
    def to_h
      self.class::FIELDS.to_h { |name| [name, public_send(name)] }
    end

    # @return [Value] a copy with these fields changed
    # @raise [ArgumentError] if a field does not exist
    def with(**changes)
      self.class.new(**to_h, **changes)
    end

    # For pattern matching: `if locks.get(key) in { held: true, expires_at: }`.
    def deconstruct_keys(_names)
      to_h
    end

    # Equal if both have the same class and content.
    def ==(other)
      other.instance_of?(self.class) && other.identity == identity
    end
    alias eql? ==

    # @return [Integer] equal for equal values
    def hash
      [self.class, identity].hash
    end

    # @return [String] the fields, without the owner token
    def inspect
      fields = to_h.map { |name, value| "#{name}=#{value.is_a?(Time) ? Messages.date_text(value) : value.inspect}" }
      "#<#{self.class} #{fields.join(' ')}>"
    end
    alias to_s inspect

    protected

    # The content that equality compares.
    def identity
      to_h.values
    end
  end
end
