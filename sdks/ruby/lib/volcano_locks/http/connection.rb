# frozen_string_literal: true

require "net/http"

module VolcanoLocks
  # A kept-alive HTTP/1.1 connection. Net::HTTP opens it, with proxy and TLS; this class writes the requests and reads
  # the responses in less than half of Net::HTTP's time.
  #
  # It is kept open only after a complete response. Not supported: trailers, which are skipped, and folded header lines.
  class Connection < Net::HTTP
    BODY_BYTES_MAX = 65_536
    HEAD_BYTES_MAX = 65_536
    CHUNK_LINE_BYTES_MAX = 1_024
    READ_BYTES = 16_384
    NEVER = { Object => :never }.freeze
    # What a socket raises.
    BROKEN = [IOError, SystemCallError, OpenSSL::SSL::SSLError].freeze
    # Matches the first line of the backtrace if a socket's own call raised the error.
    SOCKET_CALL = /(nonblock|close)'\z/
    STATUS_LINE = %r{\AHTTP/1\.([01]) (\d{3})(?: |\z)}
    private_constant :READ_BYTES, :NEVER, :BROKEN, :SOCKET_CALL, :STATUS_LINE

    # The connection broke or was silent, or the response breaks HTTP/1.1 or a limit of this class. An interrupt of the
    # thread never becomes this error, whatever its class.
    class UnusableError < StandardError; end

    # Open it.
    def open
      start
      @io = @socket.io
      @buffer = "".b
      @keep = false
    end

    # @return [Boolean] whether it may carry another request: the last response was complete, and nothing arrived since
    def reusable?
      @keep && @buffer.empty? && without_waiting { @io.read_nonblock(1, exception: false) } == :wait_readable
    rescue UnusableError
      false
    end

    # @return [Boolean] whether requests go to a proxy, not through a tunnel of it
    def plain_proxy?
      proxy? && !use_ssl?
    end

    # @return [String] the header line for a plain proxy that has a user name; otherwise empty
    def proxy_credentials
      return "" unless plain_proxy? && proxy_user

      "Proxy-Authorization: Basic #{["#{proxy_user}:#{proxy_pass}"].pack('m0')}\r\n"
    end

    # Close it.
    def close
      without_waiting { finish if started? }
    rescue UnusableError
      nil
    end

    # Break it from another thread: the thread that reads it gets an error.
    def break
      @io.to_io.shutdown
    rescue *BROKEN
      nil
    end

    # Send a request and read the response within `timeout_seconds`; for a stream, that limits each read.
    #
    # @param stream [Proc, nil] receives the bytes of an event stream instead of the returned response
    # @yieldparam headers [Hash] to be checked before the body is read
    # @return [Array] status, headers and body
    def exchange(text, timeout_seconds, stream = nil)
      @keep = false
      @timeout_seconds = timeout_seconds
      @until = stream ? nil : RealTime.seconds + timeout_seconds
      write(text)
      minor, status, headers = read_head
      minor, status, headers = read_head while status < 200
      yield headers
      body = +""
      framed = read_body(status, headers, stream && event_stream?(status, headers) ? stream : limited(body))
      @keep = framed && minor == "1" && !headers.fetch("connection", "").match?(/\bclose\b/i)
      [status, headers, body]
    end

    private

    def event_stream?(status, headers)
      status == 200 && Messages.media_type?(headers, Watch::CONTENT_TYPE)
    end

    def limited(body)
      lambda do |bytes|
        body << bytes
        raise UnusableError, "has more than #{BODY_BYTES_MAX} bytes" if body.bytesize > BODY_BYTES_MAX
      end
    end

    # The values of a header that is sent twice are joined by commas.
    def read_head
      until (ending = end_of_head)
        raise UnusableError, "has a head of more than #{HEAD_BYTES_MAX} bytes" if @buffer.bytesize > HEAD_BYTES_MAX

        fill
      end
      lines = @buffer.slice!(0, ending).delete("\r").split("\n")
      match = STATUS_LINE.match(lines.shift.to_s) || raise(UnusableError, "is not HTTP/1.1")
      headers = {}
      lines.each { |line| add_header(headers, line) }
      [match[1], match[2].to_i, headers]
    end

    def end_of_head
      crlf = @buffer.index("\n\r\n")
      lf = @buffer.index("\n\n")
      return lf + 2 if lf && (crlf.nil? || lf < crlf)

      crlf && (crlf + 3)
    end

    def add_header(headers, line)
      name, value = line.split(":", 2)
      raise UnusableError, "has an invalid header line" if value.nil?

      name.downcase!
      value.strip!
      headers[name] = headers.key?(name) ? "#{headers[name]}, #{value}" : value
    end

    # @return [Boolean] whether the body ends before the connection does
    def read_body(status, headers, on_bytes)
      return true if [204, 304].include?(status)

      if (coding = headers["transfer-encoding"])
        raise UnusableError, "has another transfer coding than chunked" unless coding.casecmp?("chunked")

        read_chunks(on_bytes)
      elsif (length = headers["content-length"])
        raise UnusableError, "has an invalid length" unless /\A\d{1,18}\z/.match?(length)

        take(length.to_i, on_bytes)
      else
        return read_until_closed(on_bytes)
      end
      true
    end

    def read_chunks(on_bytes)
      until (size = chunk_size).zero?
        take(size, on_bytes)
        raise UnusableError, "has an invalid chunk" unless read_line.empty?
      end
      nil until read_line.empty?
    end

    def chunk_size
      size = /\A\h{1,8}(?=\s*(;|\z))/.match(read_line) || raise(UnusableError, "has an invalid chunk")
      size[0].hex
    end

    def read_until_closed(on_bytes)
      on_bytes.call(@buffer.slice!(0..)) until @buffer.empty? && !fill(may_end: true)
      false
    end

    def read_line
      until (ending = @buffer.index("\n"))
        raise UnusableError, "has an invalid chunk" if @buffer.bytesize > CHUNK_LINE_BYTES_MAX

        fill
      end
      @buffer.slice!(0..ending).chomp!
    end

    def take(length, on_bytes)
      while length.positive?
        fill if @buffer.empty?
        bytes = @buffer.slice!(0, length)
        length -= bytes.bytesize
        on_bytes.call(bytes)
      end
    end

    # Add more bytes to the buffer.
    #
    # @return [Boolean] false at the end of the connection, if it `may_end`
    def fill(may_end: false)
      bytes = until_ready { @io.read_nonblock(READ_BYTES, exception: false) }
      raise UnusableError, "ended before it was complete" unless bytes || may_end

      @buffer << bytes if bytes
      !bytes.nil?
    end

    def write(text)
      until text.empty?
        written = until_ready { @io.write_nonblock(text, exception: false) }
        text = text.byteslice(written..)
      end
    end

    # Repeat a call of the socket until it has a result. TLS may have to write before it can read, and the reverse.
    def until_ready(&call)
      while (result = without_waiting(&call)).is_a?(Symbol)
        seconds = @until ? [@until - RealTime.seconds, 0.0].max : @timeout_seconds
        unless result == :wait_readable ? @io.to_io.wait_readable(seconds) : @io.to_io.wait_writable(seconds)
          raise UnusableError, "did not arrive in time"
        end
      end
      result
    end

    # Run a call of the socket that does not wait. Interrupts are deferred, so an error is the socket's own, unless a
    # trap handler raised it.
    def without_waiting
      Thread.handle_interrupt(NEVER) do
        yield
      rescue *BROKEN => e
        raise unless SOCKET_CALL.match?(e.backtrace&.first.to_s)

        raise UnusableError, "did not arrive: the connection broke (#{e.class}: #{e.message})", cause: nil
      end
    end
  end
  private_constant :Connection
end
