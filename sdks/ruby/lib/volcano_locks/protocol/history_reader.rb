# frozen_string_literal: true

module VolcanoLocks
  # Reads pages of the history of one lock (SDK-28). An entry that lacks a field is refused.
  class HistoryReader
    DATE = ->(value) { Messages.parse_date(value) }
    TEXT = ->(value) { value.is_a?(String) ? value : raise(TypeError) }
    COUNT = ->(value) { value.is_a?(Integer) && !value.negative? ? value : raise(TypeError) }
    SECONDS = ->(value) { value.is_a?(Numeric) && !value.negative? ? value.to_f : raise(TypeError) }
    ENTRY = HoldEntry::FIELDS.to_h { |name| [name, TEXT] }.merge(
      fencing_token: COUNT, renewals: COUNT, waited_seconds: SECONDS, held_seconds: SECONDS, began_at: DATE,
      renewed_at: DATE, ended_at: DATE, expires_at: DATE
    ).freeze
    REQUIRED = %i[key fencing_token began_at expires_at held_seconds].freeze
    PARAMETERS = { at: "at", since: "from", before: "to" }.freeze
    private_constant :DATE, :TEXT, :COUNT, :SECONDS, :ENTRY, :REQUIRED, :PARAMETERS

    def initialize(lock_reader)
      @lock_reader = lock_reader
    end

    # @return [Enumerator] of {HoldEntry}, the latest hold first; pages are fetched on demand
    def history(key, period)
      query = period.compact.map { |name, instant| "#{PARAMETERS.fetch(name)}=#{checked(name, instant)}&" }.join
      path = "#{Operations.lock_path(Arguments.checked_key(key))}/history?#{query}limit=#{LockReader::PAGE_ROWS}"
      @lock_reader.rows(path, "it is not a page of the history") { |row| entry_from(row) }
    end

    private

    def entry_from(row)
      raise TypeError unless row.is_a?(Hash)

      HoldEntry.new(**ENTRY.to_h do |name, read|
        value = row.fetch(name.to_s)
        [name, value.nil? && !REQUIRED.include?(name) ? nil : read.call(value)]
      end)
    end

    def checked(name, instant)
      raise TypeError, "#{name} must be a Time, got #{instant.class}" unless instant.is_a?(Time)

      Messages.date_text(instant)
    end
  end
end
