# frozen_string_literal: true

require "net/http"
require "uri"

module VolcanoLocks
  # A kept-alive connection that knows whether it may carry another request.
  class Connection < Net::HTTP
    # @return [Boolean] whether it is open and no unsolicited bytes arrived, which Net::HTTP would take for the next
    #   response
    def reusable?
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

  # Sends requests over kept-alive connections.
  #
  # A transport is any object with `call(request)`. It returns a {Response} or raises, best a {TransportError}. Many
  # threads may call it at once, and `Thread#kill` may end a call. Optional methods: `close`, and for `watch`
  # `stream(request)`, which yields the bytes of an event stream as they arrive and then returns the response without
  # them.
  #
  # A connection is reused only after a complete response, and if nothing arrived since. After an error, a killed thread
  # or a response to another request, it is closed. This class retries nothing and follows no redirects: the service
  # sends none, and the service key goes to the configured address only.
  #
  # A forked child opens its own connections and leaves its parent's untouched, since closing them would disturb the
  # parent.
  class HttpTransport
    include ForkSafe

    RESPONSE_BYTES_MAX = 65_536
    KEEP_ALIVE_SECONDS = 30.0
    REQUESTS = {
      "POST" => Net::HTTP::Post, "PATCH" => Net::HTTP::Patch, "DELETE" => Net::HTTP::Delete, "GET" => Net::HTTP::Get
    }.freeze
    private_constant :REQUESTS

    # @param api_url [String] URL of the service; its path is put before the path of each request
    def initialize(api_url)
      @url = URI.parse(api_url)
      reset_after_fork
    end

    # Send one request and read its response.
    #
    # @param request [Request]
    # @return [Response] with any status
    # @raise [TransportError] if there was no connection, or the response is too long
    # @raise [StandardError] if the connection broke
    def call(request)
      reset_after_fork
      response = nil
      connection = idle_connection || new_connection(request)
      begin
        response = exchange(connection, request)
      ensure
        response ? keep(connection) : discard(connection)
      end
    end

    # Send one request whose response may be an event stream. The block receives its bytes as they arrive.
    #
    # @return [Response] when the stream has ended, without those bytes; or a complete response of another kind
    # @raise [StandardError] as `call`
    def stream(request, &on_bytes)
      reset_after_fork
      connection = new_connection(request)
      begin
        exchange(connection, request, &on_bytes)
      ensure
        discard(connection)
      end
    end

    # Close the idle connections. The next `call` opens new ones.
    def close
      reset_after_fork
      @mutex.synchronize { @idle.slice!(0..) }.each { |connection, _since| discard(connection) }
    end

    private

    def reset
      @mutex = Mutex.new
      @idle = []
    end

    def idle_connection
      while (connection = newest_idle_connection)
        return connection if connection.reusable?

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
      set_timeouts(connection, request)
      connection.start
    rescue StandardError => e
      message = "#{request.verb} #{request.path}: #{e.class}: #{e.message}"
      raise TransportError.new(message, request_sent: false, request_id: request.request_id), cause: nil
    end

    def set_timeouts(connection, request)
      connection.open_timeout = request.timeout_seconds
      connection.read_timeout = request.timeout_seconds
      connection.write_timeout = request.timeout_seconds
    end

    def exchange(connection, request, &on_bytes)
      set_timeouts(connection, request)
      http_request = REQUESTS.fetch(request.verb).new(@url.path + request.path, request.headers)
      http_request.body = request.body
      response = nil
      connection.request(http_request) do |http_response|
        raise unusable(request, "belongs to another request") if of_another_request?(http_response, request)

        streamed = on_bytes && event_stream?(http_response)
        body = streamed ? stream_body(http_response, &on_bytes) : read_body(http_response, request)
        response = Response.new(http_response.code.to_i, http_response.each_header.to_h, body)
      end
      response
    end

    def event_stream?(http_response)
      http_response.code == "200" && http_response["content-type"].to_s.start_with?("text/event-stream")
    end

    def stream_body(http_response, &on_bytes)
      http_response.read_body(&on_bytes)
      ""
    end

    # Whether the response was unsolicited and arrived just as this request was sent.
    def of_another_request?(http_response, request)
      id = http_response["X-Volcano-Request-Id"]
      !id.nil? && !id.casecmp?(request.request_id)
    end

    def read_body(http_response, request)
      body = +""
      http_response.read_body do |chunk|
        body << chunk
        raise unusable(request, "has more than #{RESPONSE_BYTES_MAX} bytes") if body.bytesize > RESPONSE_BYTES_MAX
      end
      announced = http_response.content_length
      # Net::HTTP accepts a body that ends early because the connection closed.
      raise unusable(request, "is incomplete") if announced && body.bytesize < announced

      body
    end

    def unusable(request, why)
      TransportError.new("#{request.verb} #{request.path}: the response #{why}", request_id: request.request_id)
    end
  end
end
