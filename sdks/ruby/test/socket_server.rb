# frozen_string_literal: true

require "socket"

# A lock service over real sockets: the fake's rules, HTTP/1.1 in just the form that this client speaks it. Scripted
# faults answer instead: a string is written raw (and the connection closed), a proc is given the connection.
class SocketServer
  attr_reader :url, :asked, :holders, :script

  def initialize(locks)
    @locks = locks
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "http://127.0.0.1:#{@listener.addr[1]}"
    @asked = []
    @holders = []
    @script = []
    @accepted = []
    @thread = Thread.new { loop { serve(@listener.accept) } }
    @thread.report_on_exception = false
  end

  # How many connections were made to it.
  def connections
    @accepted.length
  end

  # Close what is idle on the server's side, as servers do.
  def hang_up
    @accepted.each { |connection| connection.close unless connection.closed? }
  end

  def close
    @thread.kill
    @listener.close
    hang_up
  end

  private

  def serve(connection)
    @accepted << connection
    Thread.new do
      Thread.current.report_on_exception = false
      nil while answer_one(connection)
    rescue IOError, SystemCallError
      nil
    end
  end

  def answer_one(connection)
    verb, path = connection.gets.to_s.split
    return connection.close if verb.nil?

    headers = {}
    while (line = connection.gets.chomp) != ""
      name, value = line.split(": ", 2)
      headers[name.split("-").map(&:capitalize).join("-")] = value
    end
    body = headers["Content-Length"] ? connection.read(headers["Content-Length"].to_i) : nil
    @asked << [verb, path]
    @holders << headers["X-Volcano-Lock-Holder"]
    fault = @script.shift
    return play(fault, connection) if fault

    return tell(connection, request(verb, path, headers, body)) if headers["Accept"] == "text/event-stream"

    connection.write(served(verb, path, headers, body))
    true
  end

  def request(verb, path, headers, body)
    VolcanoLocks::Request.new(verb: verb, path: path, headers: headers, body: body, timeout_seconds: 1.0)
  end

  def tell(connection, request)
    connection.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    # Hanging up wakes nobody who waits for something to tell.
    hearing = Thread.new do
      Thread.current.report_on_exception = false
      @locks.stream(request) { |text| connection.write("#{text.bytesize.to_s(16)}\r\n#{text}\r\n") }
    end
    connection.wait_readable
    hearing.kill.join
    false
  end

  def served(verb, path, headers, body)
    answer = @locks.call(request(verb, path, headers, body))
    "HTTP/1.1 #{answer.status} Whatever\r\nContent-Length: #{answer.body.bytesize}\r\n\r\n#{answer.body}"
  end

  def play(fault, connection)
    return fault.call(connection) if fault.is_a?(Proc)

    connection.write(fault)
    connection.close
    false
  end
end
