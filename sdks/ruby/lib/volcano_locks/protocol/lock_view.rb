# frozen_string_literal: true

require "uri"

module VolcanoLocks
  # One lock as whoever looks sees it (SDK-15). No owner token is among it.
  class LockView
    include Value

    SHOWN = %i[key held holder acquired_at renewed_at expires_at ttl_seconds fencing_token waiters].freeze

    # @return [String] the lock's key
    attr_reader :key
    # @return [Boolean] false means that an acquire would succeed now; the fields of the lease are then nil, except
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
    # @return [Integer, nil] the TTL that was last asked for
    attr_reader :ttl_seconds
    # @return [Integer, nil] the latest fencing token, if known
    attr_reader :fencing_token
    # @return [Integer] how many acquires wait for the lock
    attr_reader :waiters

    def initialize(key:, held:, holder: nil, acquired_at: nil, renewed_at: nil, expires_at: nil, ttl_seconds: nil,
                   fencing_token: nil, waiters: 0)
      @key = key
      @held = held
      @holder = holder
      @acquired_at = acquired_at
      @renewed_at = renewed_at
      @expires_at = expires_at
      @ttl_seconds = ttl_seconds
      @fencing_token = fencing_token
      @waiters = waiters
      freeze
    end
  end

  # What is asked of the service by those who look: one row, or pages of rows. An answer that lacks something of a row
  # is none.
  class Views
    PAGE_ROWS = 100
    STATES = %w[held free all].freeze
    PREFIX = /\A(?:[A-Za-z0-9][A-Za-z0-9._:-]{0,127})?\z/
    DATE = ->(value) { Messages.parse_date(value) }
    TEXT = ->(value) { value.is_a?(String) ? value : raise(TypeError) }
    FLAG = ->(value) { [true, false].include?(value) ? value : raise(TypeError) }
    COUNT = ->(value) { value.is_a?(Integer) && !value.negative? ? value : raise(TypeError) }
    FENCING_TOKEN = ->(value) { Arguments.safe_integer?(value) ? value : raise(TypeError) }
    ROW = {
      key: TEXT, held: FLAG, holder: TEXT, acquired_at: DATE, renewed_at: DATE, expires_at: DATE, ttl_seconds: COUNT,
      fencing_token: FENCING_TOKEN, waiters: COUNT
    }.freeze
    NEVER_EMPTY = %i[key held waiters].freeze
    private_constant :PREFIX, :DATE, :TEXT, :FLAG, :COUNT, :FENCING_TOKEN, :ROW, :NEVER_EMPTY

    def initialize(flows, courier)
      @flows = flows
      @courier = courier
    end

    # @return [LockView] of one lock
    def view(key, request_id)
      path = "#{Flows.lock_path(Arguments.checked_key(key))}?view=full"
      id = Arguments.request_id_or_new(request_id)
      asked(path, id) { |answer| view_from(Messages.body_of(answer, id), answer, id) }
    end

    # @return [Enumerator] of {LockView}; each page is asked for when it is needed
    def list(prefix, state)
      query = "prefix=#{escaped(checked_prefix(prefix))}&state=#{checked_state(state)}&limit=#{PAGE_ROWS}"
      Enumerator.new do |rows|
        cursor = nil
        begin
          views, cursor = page("/locks?#{query}#{cursor && "&cursor=#{escaped(cursor)}"}")
          views.each { |view| rows << view }
        end while cursor # rubocop:disable Lint/Loop
      end
    end

    private

    def page(path)
      id = Arguments.new_uuid
      asked(path, id) do |answer|
        items, cursor = Messages.body_of(answer, id).values_at("items", "next_cursor")
        unless items.is_a?(Array) && (cursor.nil? || (cursor.is_a?(String) && !cursor.empty?))
          raise Messages.malformed(answer, "it is no page of locks", id)
        end

        [items.map { |row| view_from(row, answer, id) }, cursor]
      end
    end

    def asked(path, request_id)
      @flows.retried do
        answer = @courier.ask("GET", path, request_id: request_id, timeout_seconds: @flows.timeout_seconds)
        yield @flows.expect(answer, 200, request_id)
      end
    end

    def view_from(row, answer, request_id)
      raise TypeError unless row.is_a?(Hash)

      LockView.new(**ROW.to_h do |name, read|
        value = row.fetch(name.to_s)
        [name, value.nil? && !NEVER_EMPTY.include?(name) ? nil : read.call(value)]
      end)
    rescue KeyError, TypeError, ArgumentError
      raise Messages.malformed(answer, "what it says of a lock is not whole", request_id), cause: nil
    end

    def checked_prefix(prefix)
      raise TypeError, "prefix must be a String, got #{prefix.class}" unless prefix.is_a?(String)
      return prefix if prefix.valid_encoding? && PREFIX.match?(prefix)

      raise ArgumentError, "prefix must be empty or the beginning of a key, " \
                           "got #{prefix[0, Arguments::SHOWN_CHARACTERS_MAX].inspect}"
    end

    def checked_state(state)
      return state.to_s if STATES.include?(state.to_s)

      raise ArgumentError, "state must be held, free or all, got #{state.inspect[0, Arguments::SHOWN_CHARACTERS_MAX]}"
    end

    def escaped(text)
      URI.encode_www_form_component(text).gsub("+", "%20")
    end
  end
end
