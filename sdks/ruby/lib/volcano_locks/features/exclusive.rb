# frozen_string_literal: true

module VolcanoLocks
  # Blocks and methods that run under a lock, each call in a {Block} of its own (SDK-16).
  #
  # Which lock, is said by a template with the names of the arguments: `"report-{day}"`.
  #
  # Not promised: that different arguments give different keys; with `"{a}-{b}"` they need not.
  class Exclusive
    ON_HELD = %w[raise skip wait].freeze
    GUARD = :guard
    NAME = /\{([a-z_]\w*)\}/
    TEXT = /\A[A-Za-z0-9._:-]*\z/
    private_constant :NAME, :TEXT

    # @param template [String] the key, with names of arguments in braces
    # @param on_held [Symbol, String] `raise`, `skip` or `wait`
    # @param function [Proc] what is to run
    def initialize(template, on_held, function)
      @on_held = on_held.to_s
      unless ON_HELD.include?(@on_held)
        raise ArgumentError, "on_held must be :raise, :skip or :wait, got #{on_held.inspect}"
      end

      @function = function
      @template = checked_template(template)
      @positions = names_of(:req, :opt)
      @keywords = names_of(:keyreq, :key)
      check_names(template.scan(NAME).flatten.map(&:to_sym))
    end

    # @return [Boolean] whether a call of a lock that is held does nothing
    def skips?
      @on_held == "skip"
    end

    # @return [Float, nil] how long a call waits
    def wait
      @on_held == "wait" ? Float::INFINITY : nil
    end

    # @return [String] the key for a call with these arguments
    def key(args, named)
      Arguments.checked_key(@template.gsub(NAME) { value(Regexp.last_match(1).to_sym, args, named).to_s })
    end

    # @return [Hash] the named arguments, with the guard if the function has such a one and the caller left it out
    def with_guard(guard, named)
      @keywords.include?(GUARD) && !named.key?(GUARD) ? { **named, GUARD => guard } : named
    end

    private

    def names_of(*kinds)
      @function.parameters.filter_map { |kind, name| name if kinds.include?(kind) }
    end

    def checked_template(template)
      raise TypeError, "key must be a String, got #{template.class}" unless template.is_a?(String)
      return Arguments.checked_key(template) unless template.match?(NAME)
      return template.dup.freeze if template.gsub(NAME, "").match?(TEXT)

      raise ArgumentError, "key must be made of what keys are made of and of {names} of arguments, " \
                           "got #{template[0, Arguments::SHOWN_CHARACTERS_MAX].inspect}"
    end

    # A function that takes whatever keywords come may well be given these.
    def check_names(names)
      known = @positions + @keywords - [GUARD]
      known += names - [GUARD] if @function.parameters.any? { |kind, _name| kind == :keyrest }
      unknown = names - known
      return if unknown.empty?

      raise ArgumentError, "key has #{unknown.map { |name| "{#{name}}" }.join(', ')}, which is no argument of the block"
    end

    def value(name, args, named)
      position = @positions.index(name)
      found = position ? args[position] : named[name]
      return found unless found.nil?

      raise ArgumentError, "key needs the argument #{name}, which was left out or nil"
    end
  end

  # The verb that makes such functions.
  module ExclusiveFunctions
    # A Proc that runs the block, or with `&method(:name)` a method, under a lock; each call in a `with_lock` of its own
    # (SDK-16). It takes what the block takes and returns what it returns.
    #
    #     rollup = client.locks.exclusive("rollup-{day}", ttl: 60, on_held: :skip) { |day| … }
    #     rollup.call("monday")
    #
    # @param key [String] the lock, with names of the block's arguments in braces
    # @param on_held [Symbol, String] what a call does while the lock is held: `raise` the {LockHeldError}, `skip`, and
    #   return nil, or `wait` for ever
    # @param hold_at_least [Numeric, nil] as for `with_lock`
    # @yieldparam guard [LockGuard] where the block has a keyword of that name which the caller leaves out
    # @return [Proc]
    def exclusive(key, ttl:, on_held: :raise, hold_at_least: nil, &function)
      raise ArgumentError, "exclusive needs a block" unless function

      made = Exclusive.new(key, on_held, function)
      Arguments.checked_ttl(ttl)
      hold_seconds = checked_hold(hold_at_least)
      lambda do |*args, **named, &passed|
        block = new_block(@flows.acquisition(made.key(args, named), ttl, wait: made.wait), hold_seconds)
        begin
          in_block(block) { |guard| function.call(*args, **made.with_guard(guard, named), &passed) }
        rescue LockHeldError
          raise unless made.skips? && block.guard.nil?
        end
      end
    end
  end
end
