# frozen_string_literal: true

module VolcanoLocks
  # One block of an event stream. `kind` and `data` are empty where it told only its id; `id` is nil if there is none to
  # send back.
  Event = Struct.new(:kind, :data, :id) do
    # @return [Hash] its data; empty where that is no object
    def body
      body = JSON.parse(data, freeze: true)
      body.is_a?(Hash) ? body : {}
    rescue JSON::ParserError
      {}
    end
  end

  # Server-sent events from the bytes of their stream: what the service sends (lines end in LF or CRLF), no more. No
  # block is longer than `BLOCK_BYTES_MAX`, whatever a server or proxy sends.
  #
  # Not promised: the third line end that the format knows, a lone CR.
  class EventReader
    BLOCK_BYTES_MAX = 65_536
    ID = /\A[!-~]{1,128}\z/
    private_constant :ID

    # A block is too long.
    class TooLongError < StandardError; end

    def initialize
      @rest = "".b
      @fields = {}
      @length = 0
    end

    # @return [Array<Event>] those that `bytes` completes; comments are none
    # @raise [TooLongError]
    def take(bytes)
      *lines, @rest = (@rest << bytes.b).split("\n", -1)
      @rest ||= "".b
      events = lines.filter_map { |line| take_line(line) }
      check(@length + @rest.bytesize)
      events
    end

    private

    def take_line(line)
      text = line.delete_suffix("\r").force_encoding(Encoding::UTF_8).scrub("?")
      return ended if text.empty?

      @length += line.bytesize
      check(@length)
      name, value = text.split(":", 2)
      keep(name, (value || "").delete_prefix(" ")) unless name.empty?
      nil
    end

    def keep(name, value)
      @fields[name] = name == "data" && @fields[name] ? "#{@fields[name]}\n#{value}" : value
    end

    def ended
      fields = @fields
      @fields = {}
      @length = 0
      return nil if fields.empty?

      id = fields.fetch("id", "")
      Event.new(fields.fetch("event", ""), fields.fetch("data", ""), ID.match?(id) ? id : nil)
    end

    def check(length)
      raise TooLongError, "an event longer than #{BLOCK_BYTES_MAX} bytes" if length > BLOCK_BYTES_MAX
    end
  end
end
