# frozen_string_literal: true

require "uri"

module VolcanoLocks
  # Sends requests over kept-alive connections.
  #
  # A transport is any object with `call(request)`. It returns a {Response} or raises, preferably a {TransportError}.
  # Many threads may call it at once, and `Thread#kill` may end a call. Optional methods: `close`; for `watch`
  # `stream(request)`, which yields the bytes of an event stream as they arrive and then returns the response without
  # those bytes; and `idle_connection`, as below, for requests in the caller's own thread.
  #
  # A connection is reused only after a complete response, and if nothing arrived since. After an error, a killed thread
  # or a response to another request, it is closed. This class retries nothing and follows no redirects: the service
  # sends none, and the service key goes to the configured address only.
  #
  # A forked child opens its own connections and leaves its parent's untouched, since closing them would disturb the
  # parent.
  class HttpTransport
    include ForkSafe

    KEEP_ALIVE_SECONDS = 30.0
    SECONDS_WITH_ANOTHER_CLOCK = 60.0
    CHECK_SERVER = "Check that the server is running there and that api_url (VOLCANO_API_URL) is right"
    CHECK_PROXY = "Check the proxy, or name the host in NO_PROXY"
    private_constant :CHECK_SERVER, :CHECK_PROXY

    # @param api_url [String] URL of the service; its path is put before the path of each request
    # @param timeout_seconds [Float, nil] limit of each request in real time; defaults to the request's own
    def initialize(api_url, timeout_seconds: nil)
      @url = URI.parse(api_url)
      @timeout_seconds = timeout_seconds
      @authority = @url.port == @url.default_port ? @url.host : "#{@url.host}:#{@url.port}"
      reset_after_fork
    end

    # @return [Connection, nil] an open connection that the caller gives to `call`
    def idle_connection
      reset_after_fork
      while (connection = newest_idle_connection)
        return connection if connection.reusable?

        connection.close
      end
    end

    # Send one request and read its response.
    #
    # @param request [Request]
    # @return [Response] with any status
    # @raise [TransportError] if no usable response arrived
    def call(request, connection = idle_connection || new_connection(request))
      response = nil
      begin
        response = exchange(connection, request)
      ensure
        response ? keep(connection) : connection.close
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
        connection.close
      end
    end

    # Close the idle connections. The next `call` opens new ones.
    def close
      reset_after_fork
      @mutex.synchronize { @idle.slice!(0..) }.each { |connection, _since| connection.close }
    end

    private

    def reset
      @mutex = Mutex.new
      @idle = []
    end

    def newest_idle_connection
      oldest = SystemClock.new.now - KEEP_ALIVE_SECONDS
      fresh, stale = @mutex.synchronize do
        stale = @idle.take_while { |_connection, since| since < oldest }
        @idle.shift(stale.length)
        [@idle.pop, stale]
      end
      stale.each { |connection, _since| connection.close }
      fresh&.first
    end

    def keep(connection)
      @mutex.synchronize { @idle << [connection, SystemClock.new.now] }
    end

    def new_connection(request)
      proxy = proxy_of_environment
      user, password = [proxy&.user, proxy&.password].map { |part| part && URI::DEFAULT_PARSER.unescape(part) }
      connection = Connection.new(@url.hostname, @url.port, proxy&.hostname, proxy&.port, user, password)
      connection.use_ssl = @url.is_a?(URI::HTTPS)
      connection.open_timeout = connection.ssl_timeout = seconds_for(request)
      connection.open
      connection
    rescue StandardError => e
      message = "cannot connect to #{@url.hostname} port #{@url.port}#{through(proxy&.host, proxy&.port)}: " \
                "#{e.class}: #{e.message}. #{proxy ? CHECK_PROXY : CHECK_SERVER}"
      raise failure(request, message, request_sent: false), cause: nil
    end

    # @return [URI, nil] the proxy by http_proxy, https_proxy and no_proxy; nil for a loopback address
    def proxy_of_environment
      variables = ENV.to_h
      # Not in CGI programs, where HTTP_PROXY is the header `Proxy` of a request.
      variables["http_proxy"] ||= variables["HTTP_PROXY"] unless variables.key?("REQUEST_METHOD")
      @url.find_proxy(variables) unless variables["no_proxy"] == "*" || variables["NO_PROXY"] == "*"
    rescue URI::InvalidURIError
      # The original message repeats the whole value, which may contain a password.
      raise ArgumentError, "#{@url.scheme}_proxy must be like http://proxy.example.com:3128", cause: nil
    end

    def seconds_for(request)
      @timeout_seconds || request.timeout_seconds
    end

    def through(host, port)
      " through the proxy #{host}:#{port}" if host
    end

    def exchange(connection, request, &on_bytes)
      text = request_text(connection, request)
      proxy = through(connection.proxy_address, connection.proxy_port)
      status, headers, body = connection.exchange(text, seconds_for(request), on_bytes) do |received|
        raise Connection::UnusableError, "belongs to another request" if of_another_request?(received, request)
      end
      Response.new(status, headers, body, proxy, "#{@url}#{request.path}")
    rescue Connection::UnusableError => e
      raise failure(request, "the response#{proxy} #{e.message}"), cause: nil
    end

    def request_text(connection, request)
      text = +"#{request.verb} #{target_for(connection)}#{request.path} HTTP/1.1\r\nHost: #{@authority}\r\n"
      request.headers.each { |name, value| text << name << ": " << value << "\r\n" }
      text << connection.proxy_credentials
      text << "Content-Length: #{request.body.bytesize}\r\n" if request.body
      text << "\r\n" << request.body.to_s
    end

    # A plain request through a proxy names the whole URL.
    def target_for(connection)
      connection.plain_proxy? ? "http://#{@authority}#{@url.path}" : @url.path
    end

    # Whether the response was unsolicited and arrived just as this request was sent. A proxy may send the id twice
    # (case 83).
    def of_another_request?(headers, request)
      id = headers["x-volcano-request-id"]
      !id.nil? && !id[/[^,\s]+/].to_s.casecmp?(request.request_id)
    end

    def failure(request, why, request_sent: true)
      message = "#{request.verb} #{request.path}: #{why}"
      TransportError.new(message, request_sent: request_sent, request_id: request.request_id)
    end
  end
end
