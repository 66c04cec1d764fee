# frozen_string_literal: true

module VolcanoLocks
  # How the calls of one exclusive function map to locks: the template of the key, such as `"report-{day}"`,
  # what a call does if the lock is held, and whether the function takes the guard.
  #
  # Limit: different arguments may give the same key, for example with `"{a}-{b}"`.
  class ExclusiveOptions
    ON_HELD = %w[raise skip wait].freeze
    GUARD = :guard
    NAME = /\{([a-z_]\w*)\}/
    TEXT = /\A[A-Za-z0-9._:-]*\z/
    private_constant :NAME, :TEXT

    # @param template [String] the key, with names of arguments in braces
    # @param on_held [Symbol, String] `raise`, `skip` or `wait`
    # @param function [Proc] the function to run
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

    # @return [Boolean] whether a call does nothing if the lock is held
    def skips?
      @on_held == "skip"
    end

    # @return [Float, nil] limit of a call's wait in seconds
    def wait
      @on_held == "wait" ? Float::INFINITY : nil
    end

    # @return [String] the key for a call with these arguments
    def key(args, named)
      Arguments.checked_key(@template.gsub(NAME) { value(Regexp.last_match(1).to_sym, args, named) })
    end

    # @return [Hash] the named arguments, with the guard if the function takes one and the caller did not give it
    def with_guard(guard, named)
      @keywords.include?(GUARD) && !named.key?(GUARD) ? { **named, GUARD => guard } : named
    end

    private

    def names_of(*kinds)
      @function.parameters.filter_map { |kind, name| name if kinds.include?(kind) }
    end

    def checked_template(template)
      raise TypeError, "key must be a String, got #{template.class}" unless template.is_a?(String)
      return Arguments.checked_key(template) unless Arguments.matches?(NAME, template)
      return template.dup.freeze if Arguments.readable?(template) && template.gsub(NAME, "").match?(TEXT)

      raise ArgumentError, "key must consist of A-Z a-z 0-9 . _ : - and of {names} of arguments, " \
                           "got #{Arguments.shown(template)}"
    end

    # A function with `**keywords` may be given any of them.
    def check_names(names)
      known = @positions + @keywords - [GUARD]
      known += names - [GUARD] if @function.parameters.any? { |kind, _name| kind == :keyrest }
      unknown = names - known
      return if unknown.empty?

      raise ArgumentError, "key has #{unknown.map do |name|
                                        "{#{name}}"
                                      end.join(', ')}, which is not an argument of the block"
    end

    def value(name, args, named)
      position = @positions.index(name)
      found = position ? args[position] : named[name]
      raise ArgumentError, "key needs the argument #{name}, which is missing or nil" if found.nil?

      text = found.to_s
      return text if Arguments.readable?(text)

      raise ArgumentError, "key needs the argument #{name} as ASCII text, got #{Arguments.shown(text)}"
    end
  end

  # The operation that makes a function exclusive.
  module ExclusiveFunctions
    # Returns a Proc that runs the block, or a method given as `&method(:name)`, under a lock. Each call is a separate
    # `with_lock`. The Proc has the block's arguments and return value. It may be given to `define_method` and
    # `instance_exec`; `self` in the block is always the `self` of the code around it.
    #
    # The lock is released when the block returns. What a lazy result (an Enumerator, a lazy chain, a database cursor)
    # does later, it does without the lock: return an Array or a value.
    #
    # @example
    #   rollup = client.locks.exclusive("rollup-{day}", ttl: 60, on_held: :skip) { |day| write_report(day) }
    #   rollup.call("monday") # nil while another process runs it
    #
    # @param key [String] the lock's key, with names of the block's arguments in braces
    # @param on_held [Symbol, String] what a call does while the lock is held: `raise` the {LockHeldError}, `skip` and
    #   return nil, or `wait` without limit
    # @param hold_at_least [Numeric, nil] as for `with_lock`
    # @param renew_every [Numeric, nil] as for `with_lock`
    # @yieldparam guard [LockGuard] if the block has a keyword of that name and the caller does not give it
    # @return [Proc]
    def exclusive(key, ttl:, on_held: :raise, hold_at_least: nil, renew_every: nil, &function)
      raise ArgumentError, "exclusive needs a block" unless function

      options = ExclusiveOptions.new(key, on_held, function)
      ttl = Arguments.checked_ttl(ttl)
      more = [checked_hold(hold_at_least), Arguments.checked_renew_every(renew_every, ttl)]
      locks = self # the Proc may run with another self
      lambda do |*args, **named, &passed|
        locks.send(:call_exclusive, ttl, options, more, [args, named]) do |arguments|
          function.call(*args, **arguments, &passed)
        end
      end
    end

    private

    def call_exclusive(ttl, options, more, arguments)
      block = new_block(@operations.acquisition(options.key(*arguments), ttl, wait: options.wait), *more)
      begin
        in_block(block) { |guard| yield options.with_guard(guard, arguments.last) }
      rescue LockHeldError
        raise unless options.skips? && block.guard.nil?
      end
    end
  end
end
