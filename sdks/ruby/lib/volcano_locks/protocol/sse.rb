# frozen_string_literal: true

module VolcanoLocks
  # One event of an event stream. `kind` and `data` are empty if it has only an id; `id` is nil if it cannot be sent
  # back.
  ServerSentEvent = Struct.new(:kind, :data, :id) do
    # @return [Hash] its data; empty if that is not a JSON object
    def body
      body = JSON.parse(data, freeze: true)
      body.is_a?(Hash) ? body : {}
    rescue JSON::ParserError
      {}
    end
  end

  # Parses server-sent events from the bytes of their stream, as the service sends them (lines end in LF or CRLF). An
  # event has at most `EVENT_BYTES_MAX` bytes, whatever a server or proxy sends.
  #
  # Limit: a lone CR, the format's third line ending, ends no line.
  class SseParser
    EVENT_BYTES_MAX = 65_536
    ID = /\A[!-~]{1,128}\z/
    private_constant :ID

    # An event is too long.
    class TooLongError < StandardError; end

    def initialize
      @partial_line = "".b
      @fields = {}
      @length = 0
    end

    # @return [Array<ServerSentEvent>] those that `bytes` completes, without comments
    # @raise [TooLongError]
    def feed(bytes)
      *lines, @partial_line = (@partial_line << bytes.b).split("\n", -1)
      @partial_line ||= "".b
      events = lines.filter_map { |line| parse_line(line) }
      check_length(@length + @partial_line.bytesize)
      events
    end

    private

    def parse_line(line)
      text = line.delete_suffix("\r").force_encoding(Encoding::UTF_8).scrub("?")
      return finish_event if text.empty?

      @length += line.bytesize
      check_length(@length)
      name, value = text.split(":", 2)
      set_field(name, (value || "").delete_prefix(" ")) unless name.empty?
      nil
    end

    def set_field(name, value)
      @fields[name] = name == "data" && @fields[name] ? "#{@fields[name]}\n#{value}" : value
    end

    def finish_event
      fields = @fields
      @fields = {}
      @length = 0
      return nil if fields.empty?

      id = fields.fetch("id", "")
      ServerSentEvent.new(fields.fetch("event", ""), fields.fetch("data", ""), ID.match?(id) ? id : nil)
    end

    def check_length(length)
      raise TooLongError, "an event has more than #{EVENT_BYTES_MAX} bytes" if length > EVENT_BYTES_MAX
    end
  end
end
