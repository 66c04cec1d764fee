# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../socket_server"

# SDK-14: watching who holds a lock.
class TestWatch < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @holder = @fixture.server.client(holder: "host/1").locks
    @changes = Queue.new
  end

  def teardown
    @watcher&.kill&.join(PATIENCE_SECONDS)
  rescue VolcanoError # checked by its test
    nil
  ensure
    @fixture.client.close
  end

  def test_a_watch_continues_over_a_restart_and_reports_each_change_once
    lease = @holder.acquire(KEY, ttl: 600)
    watch
    assert @changes.pop.held?
    @fixture.clock.settle
    @fixture.server.restart
    @fixture.clock.settle
    @fixture.clock.advance(5)
    assert_empty @changes, "the same leadership is not reported again"
    asked = @fixture.network.seen.map { |one| one.headers["Last-Event-ID"] }.compact
    assert_match(/\A1-\d+\z/, asked.first)
    @fixture.network.otherwise = Reset.new
    @fixture.server.restart
    @holder.release(KEY, lease)
    @fixture.clock.advance(20)
    assert_empty @changes
    @fixture.network.otherwise = Pass.new
    @fixture.clock.advance(10)
    refute_predicate @changes.pop, :held?
  end

  def test_a_silent_stream_is_replaced_and_one_with_comments_is_kept
    @fixture.network.script << Pass.new << Pass.new << Hang.new
    watch
    @changes.pop
    @fixture.clock.advance(300)
    assert_equal 1, @fixture.server.subscribers
    assert_equal 2, @fixture.network.seen.length
    @fixture.server.restart
    @fixture.clock.settle
    assert_equal 3, @fixture.network.seen.length
    @fixture.clock.advance(11)
    assert_operator @fixture.network.seen.length, :>, 3, "a stream that never begins times out like a request"
  end

  # SDK-14: the change is not lost although its event cannot be ordered
  def test_an_event_with_an_unusable_token_makes_the_client_read_the_lock
    watch
    refute_predicate @changes.pop, :held?
    lease = nil
    [nil, "1", 0, 2**53, 1.5].each do |token|
      lease = @holder.acquire(KEY, ttl: 600)
      assert_equal lease.fencing_token, @changes.pop.fencing_token
      reads = @fixture.network.seen.length
      @fixture.server.instance_variable_get(:@mutex).synchronize do
        @fixture.server.instance_variable_get(:@locks)[KEY].instance_variable_set(:@owner, nil)
        @fixture.server.instance_variable_get(:@event_log).publish(KEY, "released", { fencing_token: token })
      end
      refute_predicate @changes.pop, :held?
      assert_equal reads + 1, @fixture.network.seen.length
    end
  end

  def test_real_time_a_thousand_waits_do_not_silence_a_watch
    lease = @holder.acquire(KEY, ttl: 600)
    sender = @fixture.locks.instance_variable_get(:@sender)
    waits = Array.new(RequestThreads::LONG_THREADS_MAX + 1) do
      sender.start_request("POST", "/locks/#{KEY}/lease", request_id: Arguments.new_uuid, token: Arguments.new_uuid,
                                                          ttl_seconds: 30, wait_seconds: 50.0, timeout_seconds: 60.0)
    end
    eventually { @fixture.server.waiters(KEY) == RequestThreads::LONG_THREADS_MAX }
    watch
    assert_equal lease.fencing_token, @changes.pop.fencing_token
    @fixture.server.client.locks.force_release(KEY)
    refute_equal lease.fencing_token, @changes.pop.fencing_token
  ensure
    waits&.each(&:cancel)
  end

  def test_a_permanent_error_is_raised
    { respond(401, "invalid_credentials") => AuthenticationError, respond(404, "not_found") => NotFoundError,
      Respond.new(200, "<html>") => ServerError }.each do |fault, kind|
      assert_raises(kind) { Fixture.new([fault]).locks.watch(KEY) { flunk } }
    end
    assert_raises(ArgumentError) { @fixture.locks.watch("/") }
  end

  def test_leaving_the_loop_ends_the_stream
    assert_equal(:left, @fixture.locks.watch(KEY) { break :left })
    eventually { @fixture.server.subscribers.zero? }
    assert_raises(BodyError) { @fixture.locks.watch(KEY) { raise BodyError } }
    # The caller's own errors are not taken for errors of the stream.
    assert_raises(TransportError) { @fixture.locks.watch(KEY) { raise TransportError, "mine" } }
    assert_raises(StopIteration) { @fixture.locks.watch(KEY) { raise StopIteration } }
    assert_equal(1, @fixture.locks.watch(KEY).first(1).length)
    eventually { @fixture.server.subscribers.zero? }
  end

  def test_real_time_interrupts_end_the_stream
    watch
    @changes.pop
    @watcher.kill.join(PATIENCE_SECONDS)
    eventually { @fixture.server.subscribers.zero? }
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { @fixture.locks.watch(KEY) { nil } } }
    eventually { @fixture.server.subscribers.zero? }
  end

  def test_closing_the_client_ends_the_watch
    watch
    @changes.pop
    @fixture.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { @watcher.value }.message)
    assert_equal 0, @fixture.server.subscribers
  end

  # An Enumerator without further `next`: its fiber is never resumed.
  def test_the_stream_of_an_abandoned_watch_ends
    abandon_a_watch
    eventually do
      GC.start
      @fixture.clock.advance(15)
      @fixture.server.subscribers.zero?
    end
  end

  def test_each_run_through_the_enumerator_is_a_separate_watch
    changes = @fixture.locks.watch(KEY)
    assert_empty @fixture.network.seen
    2.times { refute_predicate changes.first, :held? }
    refute_predicate changes.next, :held?
    lease = @holder.acquire(KEY, ttl: 30)
    assert_equal lease.fencing_token, changes.next.fencing_token
  end

  def test_real_time_a_watch_over_sockets
    server = SocketServer.new(@fixture.server)
    client = Client.new(api_url: server.url, service_key: "sk-x", timeout: 5)
    changes = client.locks.watch(KEY)
    # SDK-9: the server's media type is in mixed case
    refute_predicate changes.next, :held?
    lease = @holder.acquire(KEY, ttl: 30)
    assert_equal lease.fencing_token, changes.next.fencing_token
    server.close_connections
    @holder.release(KEY, lease)
    refute_predicate changes.next, :held?
    client.close
    assert_raises(VolcanoError) { changes.next }
    eventually { @fixture.server.subscribers.zero? }
  ensure
    server&.close
  end

  private

  def watch
    @watcher = quiet_thread { @fixture.locks.watch(KEY) { |change| @changes << change } }
  end

  def shown(change)
    [change.held?, change.holder, change.fencing_token]
  end

  def abandon_a_watch
    Thread.new { @fixture.locks.watch(KEY).next }.join
  end
end
