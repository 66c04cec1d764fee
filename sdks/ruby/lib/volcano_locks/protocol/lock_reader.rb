# frozen_string_literal: true

require "uri"

module VolcanoLocks
  # Reads the rows of locks from the service: one lock, or pages of them (SDK-15). A row that lacks a field is refused.
  class LockReader
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
    REQUIRED = %i[key held waiters].freeze
    LABELS = lambda do |queue|
      queue.is_a?(Array) && queue.all?(Hash) ? queue.map { |one| one.fetch("holder")&.then(&TEXT) } : raise(TypeError)
    end
    private_constant :LABELS, :PREFIX, :DATE, :TEXT, :FLAG, :COUNT, :FENCING_TOKEN, :ROW, :REQUIRED

    def initialize(operations, sender)
      @operations = operations
      @sender = sender
    end

    # @return [LockView] of one lock
    def view(key, request_id)
      path = "#{Operations.lock_path(Arguments.checked_key(key))}?view=full"
      id = Arguments.request_id_or_new(request_id)
      fetch(path, id) do |response|
        parsed(Messages.body_of(response, id), response, id) { |row| parsed_view(row) }
      end
    end

    # @return [Enumerator] of {LockView}; pages are fetched on demand
    def list(prefix, state)
      query = "prefix=#{escaped(checked_prefix(prefix))}&state=#{checked_state(state)}&limit=#{PAGE_ROWS}"
      rows("/locks?#{query}", "it is not a page of locks") { |row| parsed_view(row) }
    end

    # @return [Enumerator] of what the block makes of each row of all pages at `path`, which has a query; pages are
    #   fetched on demand. `unlike_page` is the complaint about another response.
    def rows(path, unlike_page, &parse)
      Enumerator.new do |found|
        cursor = nil
        begin
          parsed, cursor = page("#{path}#{cursor && "&cursor=#{escaped(cursor)}"}", unlike_page, &parse)
          parsed.each { |row| found << row }
        end while cursor # rubocop:disable Lint/Loop
      end
    end

    private

    def page(path, unlike_page, &parse)
      id = Arguments.new_uuid
      fetch(path, id) do |response|
        items, cursor = Messages.body_of(response, id).values_at("items", "next_cursor")
        unless items.is_a?(Array) && (cursor.nil? || (cursor.is_a?(String) && !cursor.empty?))
          raise Messages.malformed(response, unlike_page, id)
        end

        [items.map { |row| parsed(row, response, id, &parse) }, cursor]
      end
    end

    def fetch(path, request_id)
      @operations.with_retry do
        response = @sender.send_request("GET", path, request_id: request_id,
                                                     timeout_seconds: @operations.timeout_seconds)
        yield @operations.expect_status(response, 200, request_id)
      end
    end

    def parsed(row, response, request_id)
      yield row
    rescue KeyError, TypeError, ArgumentError
      raise Messages.malformed(response, "a field of a lock is missing or invalid", request_id), cause: nil
    end

    def parsed_view(row)
      raise TypeError unless row.is_a?(Hash)

      fields = ROW.to_h do |name, read|
        value = row.fetch(name.to_s)
        [name, value.nil? && !REQUIRED.include?(name) ? nil : read.call(value)]
      end
      LockView.new(**fields, queue: LABELS.call(row.fetch("queue", [])))
    end

    def checked_prefix(prefix)
      raise TypeError, "prefix must be a String, got #{prefix.class}" unless prefix.is_a?(String)
      return prefix if Arguments.matches?(PREFIX, prefix)

      raise ArgumentError, "prefix must be empty or the beginning of a key, got #{Arguments.shown(prefix)}"
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
