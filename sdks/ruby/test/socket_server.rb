# frozen_string_literal: true

require "socket"

# The fake over real sockets, with as much of HTTP/1.1 as this client needs. A scripted fault replaces a response: a
# string is written as it is and the connection closed, a proc receives the connection.
class SocketServer
  attr_reader :url, :requests, :holders, :script

  def initialize(locks)
    @locks = locks
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "http://127.0.0.1:#{@listener.addr[1]}"
    @requests = []
    @holders = []
    @script = []
    @accepted = []
    @thread = Thread.new { loop { serve(@listener.accept) } }
    @thread.report_on_exception = false
  end

  # The number of accepted connections.
  def connections
    @accepted.length
  end

  # Close all connections from the server's side.
  def close_connections
    @accepted.each { |connection| connection.close unless connection.closed? }
  end

  def close
    @thread.kill
    @listener.close
    close_connections
  end

  private

  def serve(connection)
    @accepted << connection
    Thread.new do
      Thread.current.report_on_exception = false
      nil while serve_one(connection)
    rescue IOError, SystemCallError
      nil
    end
  end

  def serve_one(connection)
    verb, path = connection.gets.to_s.split
    return connection.close if verb.nil?

    headers = {}
    while (line = connection.gets.chomp) != ""
      name, value = line.split(": ", 2)
      headers[name.split("-").map(&:capitalize).join("-")] = value
    end
    body = headers["Content-Length"] ? connection.read(headers["Content-Length"].to_i) : nil
    @requests << [verb, path]
    @holders << headers["X-Volcano-Lock-Holder"]
    fault = @script.shift
    return inject(fault, connection) if fault

    return stream(connection, request(verb, path, headers, body)) if headers["Accept"] == "text/event-stream"

    connection.write(served(verb, path, headers, body))
    true
  end

  def request(verb, path, headers, body)
    VolcanoLocks::Request.new(verb: verb, path: path, headers: headers, body: body, timeout_seconds: 1.0)
  end

  def stream(connection, request)
    connection.write("HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; Charset=UTF-8\r\n" \
                     "Transfer-Encoding: chunked\r\n\r\n")
    # A closed connection does not wake a thread that waits for events, so it is killed.
    streaming = Thread.new do
      Thread.current.report_on_exception = false
      @locks.stream(request) { |text| connection.write("#{text.bytesize.to_s(16)}\r\n#{text}\r\n") }
    end
    connection.wait_readable
    streaming.kill.join
    false
  end

  def served(verb, path, headers, body)
    response = @locks.call(request(verb, path, headers, body))
    "HTTP/1.1 #{response.status} Status\r\nContent-Length: #{response.body.bytesize}\r\n\r\n#{response.body}"
  end

  def inject(fault, connection)
    return fault.call(connection) if fault.is_a?(Proc)

    connection.write(fault)
    connection.close
    false
  end
end
