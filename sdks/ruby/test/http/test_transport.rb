# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../socket_server"

# The client's own transport over real sockets.
class TestTransport < Minitest::Test
  include TestHelper

  def setup
    @locks = Testing::FakeLocks.new
    @server = SocketServer.new(@locks)
    @client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 5)
  end

  def teardown
    @client.close
    @server.close
  end

  def test_a_connection_is_reused
    lease = @client.locks.acquire(KEY, ttl: 30)
    10.times { lease = @client.locks.renew(KEY, lease) }
    @client.locks.release(KEY, lease)
    assert_equal 1, @server.connections
  end

  def test_threads_share_a_client
    threads = Array.new(8) { |number| quiet_thread { 5.times.map { @client.locks.get("k#{number}").held? } } }
    assert_equal [[false] * 5] * 8, threads.map(&:value)
    assert_operator @server.connections, :<=, 8
  end

  # case 32
  def test_an_idle_connection_that_the_server_closed_is_replaced
    @client.locks.get(KEY)
    @server.close_connections
    sleep 0.01
    lease = @client.locks.acquire(KEY, ttl: 30)
    @server.close_connections
    @client.locks.release(KEY, lease)
    assert_equal %w[GET POST DELETE], @server.requests.map(&:first)
  end

  # case 32: the connection closes while the request is sent. Only the client retries, never Net::HTTP.
  def test_a_connection_that_breaks_during_the_request_is_replaced_once
    @server.script << ->(connection) { connection.close }
    @client.locks.acquire(KEY, ttl: 30)
    assert_equal %w[POST POST], @server.requests.map(&:first)
    2.times { @server.script << ->(connection) { connection.close } }
    assert_raises(TransportError) { @client.locks.force_release(KEY) }
    assert_equal "DELETE", @server.requests.last.first
    assert_equal 3, @server.requests.length, "Net::HTTP does not retry"
  end

  # case 37: the next request must not read the rest of this response
  def test_an_interrupted_request_closes_its_connection
    @client.locks.get(KEY)
    half = Queue.new
    @server.script << lambda do |connection|
      connection.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"held\":true,")
      half.pop
    end
    assert_raises(Timeout::Error) { Timeout.timeout(1) { @client.locks.get("other") } }
    refute @client.locks.get(KEY).held?
    half << true
    assert_equal 2, @server.connections
  end

  # A load balancer sends an unsolicited 408 when an idle connection times out. Read as a response, it would shift all
  # later ones.
  def test_an_unsolicited_response_is_not_taken_for_the_next_one
    late = []
    unasked = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    free = "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"held\":false}"
    [
      ->(connection) { connection.write(free + unasked) },
      ->(connection) { connection.write("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"held\":false}HTTP/1.1 4") },
      ->(connection) { late << Thread.new { sleep(0.005) && connection.write(unasked) } if connection.write(free) },
      ->(connection) { connection.write("HTTP/1.1 204 No Content\r\nContent-Length: 46\r\n\r\n#{unasked}") }
    ].each do |fault|
      @server.script << fault
      begin
        @client.locks.get(KEY)
      rescue VolcanoError => e
        assert_includes [nil, 204], e.status
      end
      sleep 0.05
      late.each(&:join)
      3.times { refute_predicate @client.locks.get(KEY), :held? }
    end
  end

  # It arrived too late to be recognized as unsolicited, but its request id differs.
  def test_a_response_to_another_request_is_refused
    other = "X-Volcano-Request-Id: #{SecureRandom.uuid}\r\n"
    answer = "HTTP/1.1 200 OK\r\n#{other}Content-Length: 14\r\n\r\n{\"held\":false}"
    2.times { @server.script << ->(connection) { connection.write(answer) } }
    error = assert_raises(TransportError) { @client.locks.get(KEY) }
    assert_predicate error, :request_sent?
    assert_match(/another request/, error.message)
    refute_predicate @client.locks.get(KEY), :held?
    assert_equal 3, @server.connections
  end

  def test_a_request_that_times_out_or_is_interrupted_is_ended
    began = Queue.new
    ended = Queue.new
    transport = lambda do |_request|
      began << true
      sleep
    ensure
      ended << true
    end
    client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 0.5, transport: transport)
    assert_raises(TransportError) { client.locks.get(KEY) }
    client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 60, transport: transport)
    assert_raises(Timeout::Error) { Timeout.timeout(1) { client.locks.get(KEY) } }
    eventually { began.length == 3 && ended.length == 3 }
  end

  # SDK-4: the timeout covers the whole request
  def test_a_slowly_arriving_response_times_out
    stop = false
    trickle = lambda do |connection|
      connection.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
      until stop
        connection.write(" ")
        sleep 0.02
      end
    end
    client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 0.2)
    2.times { @server.script << trickle }
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    assert_raises(TransportError) { client.locks.get(KEY) }
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 5
  ensure
    stop = true
    client.close
  end

  def test_an_incomplete_or_too_long_response_is_a_transport_error
    ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"held\":false}",
     "HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n#{' ' * 70_000}"].each do |raw|
      2.times { @server.script << raw }
      error = assert_raises(TransportError, raw[0, 20]) { @client.locks.get(KEY) }
      assert_predicate error, :request_sent?
    end
    refute @client.locks.get(KEY).held?
  end

  def test_a_redirect_is_not_followed
    @server.script << "HTTP/1.1 302 Found\r\nLocation: #{@server.url}/elsewhere\r\nContent-Length: 0\r\n\r\n"
    error = assert_raises(ServerError) { @client.locks.get(KEY) }
    assert_equal 302, error.status
    assert_equal 1, @server.requests.length
  end

  def test_a_refused_connection_is_an_unsent_request
    @server.close
    error = assert_raises(TransportError) { @client.locks.acquire(KEY, ttl: 30) }
    refute_predicate error, :request_sent?
    assert_match(/ECONNREFUSED/, error.message)
  end

  def test_the_api_url_may_have_a_path
    client = Client.new(api_url: "#{@server.url}/base/", service_key: "sk-x")
    assert_raises(NotFoundError) { client.locks.get(KEY) }
    assert_equal "/base/locks/#{KEY}", @server.requests.last.last
  ensure
    client.close
  end

  # Over a new connection, in a thread of the client; and over an open one, in the caller's.
  def test_closing_ends_a_request_in_progress
    began = Queue.new
    hold = Queue.new
    [false, true].each do |open|
      client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 600)
      client.locks.get(KEY) if open
      @server.script << lambda do |_connection|
        began << true
        hold.pop
      end
      thread = quiet_thread { client.locks.get(KEY) }
      began.pop
      client.close
      error = assert_raises(VolcanoError) { thread.join(PATIENCE_SECONDS) }
      assert_equal "this client is closed", error.message
    end
  ensure
    2.times { hold << true }
  end

  # SDK-4: the whole response, not each part of it
  def test_a_slow_response_over_an_open_connection_times_out
    client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 0.3)
    client.locks.get(KEY)
    stop = false
    2.times do
      @server.script << lambda do |connection|
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        connection.write(" ") && sleep(0.02) until stop
      end
    end
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    assert_match(/no response within 0.3 seconds/, assert_raises(TransportError) { client.locks.get(KEY) }.message)
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 5
  ensure
    stop = true
    client.close
  end

  # SDK-23: over an open connection, in the caller's thread
  def test_an_interrupted_release_is_carried_out
    interrupts = { raise: ->(thread) { thread.raise(BodyError) }, kill: lambda(&:kill) }
    interrupts.each_value do |interrupt|
      lease = @client.locks.acquire(KEY, ttl: 600)
      began = Queue.new
      @server.script << lambda do |connection|
        began << true
        connection.wait_readable
        false
      end
      thread = quiet_thread { @client.locks.release(KEY, lease) }
      began.pop
      interrupt.call(thread)
      thread.report_on_exception = false
      begin
        assert thread.join(PATIENCE_SECONDS)
      rescue BodyError
        pass
      end
      eventually { !@client.locks.get(KEY).held? }
    end
  end

  # SDK-3, with the real clock
  def test_real_time_a_block_is_renewed
    clock = @locks.clock
    moving = Thread.new { loop { sleep(0.05) && clock.jump(0.05) } }
    @client.locks.with_lock(KEY, ttl: 5) do |guard|
      first = guard.lease
      eventually { guard.lease.expires_at > first.expires_at }
      refute guard.lost?
    end
    assert_includes @server.requests.map(&:first), "PATCH"
  ensure
    moving.kill
  end
end
