# frozen_string_literal: true

require "net/http"
require "uri"

module VolcanoLocks
  # A connection that can tell whether its next answer would be read from its beginning.
  class Connection < Net::HTTP
    # @return [Boolean] whether it is open and nothing came that nobody asked for, which Net::HTTP would take for the
    #   next answer
    def quiet?
      return false if @socket.nil? || @socket.closed?

      @socket.read_timeout = 0
      @socket.read(1)
      false
    rescue Net::ReadTimeout
      true
    rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
      false
    end
  end
  private_constant :Connection

  # Sends requests over kept-alive connections. A transport is any object with `call(request)`, which gives an {Answer}
  # or raises (best a {TransportError}), may be called by many threads at once, and may be ended in the midst of a
  # request by `Thread#kill`; and, if it likes, `close`. For `watch` it also has `stream(request)`, which yields the
  # bytes of an event stream as they come, and gives the answer, without them, when that has ended.
  #
  # A connection is used again only after an answer was read to its end, and if nothing came since. Whatever else
  # happens to a request (an error, a killed thread, the answer to another one), its connection is closed. Nothing is
  # sent twice here, and redirects are not followed: the service sends none, and the service key goes to the configured
  # address only.
  #
  # A child process opens its own connections, and leaves those of its parent untouched: closing them properly would
  # disturb the parent.
  class HttpTransport
    ANSWER_BYTES_MAX = 65_536
    KEEP_ALIVE_SECONDS = 30.0
    REQUESTS = {
      "POST" => Net::HTTP::Post, "PATCH" => Net::HTTP::Patch, "DELETE" => Net::HTTP::Delete, "GET" => Net::HTTP::Get
    }.freeze
    private_constant :REQUESTS

    # @param api_url [String] where the service is; its path is put before each request's
    def initialize(api_url)
      @url = URI.parse(api_url)
      begin_here
    end

    # Send one request and read its answer.
    #
    # @param request [Request]
    # @return [Answer] whatever its status
    # @raise [TransportError] when there was no connection, or the answer is too long
    # @raise [StandardError] when the connection broke
    def call(request)
      after_fork
      answer = nil
      connection = idle_connection || new_connection(request)
      begin
        answer = exchange(connection, request)
      ensure
        answer ? keep(connection) : discard(connection)
      end
    end

    # Send one request whose answer may be an event stream. The block is given its bytes as they come.
    #
    # @return [Answer] when the stream has ended, without those bytes; or an answer that is no event stream, whole
    # @raise [StandardError] as `call`
    def stream(request, &heard)
      after_fork
      connection = new_connection(request)
      begin
        exchange(connection, request, &heard)
      ensure
        discard(connection)
      end
    end

    # Close the connections nobody uses. The next `call` opens new ones.
    def close
      after_fork
      @mutex.synchronize { @idle.slice!(0..) }.each { |connection, _since| discard(connection) }
    end

    private

    def begin_here
      @pid = Process.pid
      @mutex = Mutex.new
      @idle = []
    end

    def after_fork
      begin_here if @pid != Process.pid
    end

    def idle_connection
      while (connection = newest_idle_connection)
        return connection if connection.quiet?

        discard(connection)
      end
    end

    def newest_idle_connection
      oldest = SystemClock.new.now - KEEP_ALIVE_SECONDS
      fresh, stale = @mutex.synchronize do
        stale = @idle.take_while { |_connection, since| since < oldest }
        @idle.shift(stale.length)
        [@idle.pop, stale]
      end
      stale.each { |connection, _since| discard(connection) }
      fresh&.first
    end

    def keep(connection)
      @mutex.synchronize { @idle << [connection, SystemClock.new.now] }
    end

    def discard(connection)
      connection.finish if connection.started?
    rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
      nil
    end

    def new_connection(request)
      connection = Connection.new(@url.hostname, @url.port)
      connection.use_ssl = @url.is_a?(URI::HTTPS)
      connection.max_retries = 0
      connection.keep_alive_timeout = KEEP_ALIVE_SECONDS
      limit(connection, request)
      connection.start
    rescue StandardError => e
      message = "#{request.verb} #{request.path}: #{e.class}: #{e.message}"
      raise TransportError.new(message, request_sent: false, request_id: request.request_id), cause: nil
    end

    def limit(connection, request)
      connection.open_timeout = request.timeout_seconds
      connection.read_timeout = request.timeout_seconds
      connection.write_timeout = request.timeout_seconds
    end

    def exchange(connection, request, &heard)
      limit(connection, request)
      asked = REQUESTS.fetch(request.verb).new(@url.path + request.path, request.headers)
      asked.body = request.body
      answer = nil
      connection.request(asked) do |response|
        raise unusable(request, "is to another request") if to_another?(response, request)

        body = heard && events?(response) ? read_on(response, &heard) : read(response, request)
        answer = Answer.new(response.code.to_i, response.each_header.to_h, body)
      end
      answer
    end

    def events?(response)
      response.code == "200" && response["content-type"].to_s.start_with?("text/event-stream")
    end

    def read_on(response, &heard)
      response.read_body(&heard)
      ""
    end

    # An answer that came unasked, just as this request went out.
    def to_another?(response, request)
      told = response["X-Volcano-Request-Id"]
      !told.nil? && !told.casecmp?(request.request_id)
    end

    def read(response, request)
      body = +""
      response.read_body do |chunk|
        body << chunk
        raise unusable(request, "longer than #{ANSWER_BYTES_MAX} bytes") if body.bytesize > ANSWER_BYTES_MAX
      end
      announced = response.content_length
      # Net::HTTP takes the end of the connection for the end of the body.
      raise unusable(request, "cut off") if announced && body.bytesize < announced

      body
    end

    def unusable(request, why)
      TransportError.new("#{request.verb} #{request.path}: answer #{why}", request_id: request.request_id)
    end
  end
end
