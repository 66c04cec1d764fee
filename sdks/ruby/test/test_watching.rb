# frozen_string_literal: true

require_relative "test_helper"
require_relative "socket_server"

# SDK-15: one lock and lists of locks, for whoever looks.
class TestLooking < Minitest::Test
  include TestHelper

  ROW = {
    "key" => "k", "held" => true, "holder" => "host/1", "acquired_at" => "2026-07-20T14:00:00.000Z",
    "renewed_at" => "2026-07-20T14:00:10.000Z", "expires_at" => "2026-07-20T14:00:40.000Z", "ttl_seconds" => 30,
    "fencing_token" => 7, "waiters" => 2
  }.freeze

  def test_a_view_tells_who_holds_a_lock_and_until_when
    fixture = Fixture.new
    lease = fixture.server.client(holder: "host/1").locks.acquire(KEY, ttl: 30)
    fixture.clock.jump(10)
    fixture.others.renew(KEY, lease, ttl: 60)
    start = Testing::ManualClock::START
    view = fixture.locks.view(KEY)
    assert_equal [KEY, true, start, start + 10, start + 70, 60, lease.fencing_token, 0],
                 [view.key, view.held?, view.acquired_at, view.renewed_at, view.expires_at, view.ttl_seconds,
                  view.fencing_token, view.waiters]
    assert_predicate view, :frozen?
  end

  def test_a_lock_nobody_has_used_is_a_free_one
    view = Fixture.new.locks.view(KEY)
    assert_equal LockView.new(key: KEY, held: false), view
    refute_predicate view, :held?
  end

  def test_a_list_comes_in_pages_when_they_are_needed
    fixture = Fixture.new
    keys = (0...250).map { |number| format("k%03d", number) }
    keys.shuffle(random: Random.new(1)).each { |key| fixture.others.acquire(key, ttl: 30) }
    views = fixture.locks.list("k")
    assert_empty fixture.network.seen
    assert_equal "k000", views.next.key
    assert_equal 1, fixture.network.seen.length
    assert_equal keys, views.map(&:key)
    assert_equal 4, fixture.network.seen.length
  end

  def test_a_list_is_of_a_prefix_and_a_state
    fixture = Fixture.new
    freed = fixture.others.acquire("a:1", ttl: 30)
    ["a:2", "b:1"].each { |key| fixture.others.acquire(key, ttl: 30) }
    fixture.others.release("a:1", freed)
    seen = ->(*args, **options) { fixture.locks.list(*args, **options).map(&:key) }
    assert_equal [%w[a:1 a:2 b:1], %w[a:1 a:2], %w[a:2], %w[a:1]],
                 [seen.call, seen.call("a:"), seen.call("a:", state: :held), seen.call(state: "free")]
    given = []
    assert_nil(fixture.locks.list("b") { |view| given << view.key })
    assert_equal ["b:1"], given
    assert_equal "/locks?prefix=a%3A&state=held&limit=100", fixture.network.seen[2].path
  end

  def test_a_cursor_is_sent_back_as_it_came
    pages = [{ items: [ROW], next_cursor: "locks.a:/é& " }, { items: [], next_cursor: nil }]
    fixture = Fixture.new(pages.map { |page| Respond.new(200, JSON.generate(page)) })
    assert_equal(["k"], fixture.locks.list("a:").map(&:key))
    assert_equal "/locks?prefix=a%3A&state=all&limit=100&cursor=locks.a%3A%2F%C3%A9%26%20",
                 fixture.network.seen.last.path
  end

  def test_what_is_no_row_is_no_answer
    broken = { "held" => "yes", "holder" => 5, "acquired_at" => "yesterday", "ttl_seconds" => true,
               "fencing_token" => 2**53, "waiters" => nil, "key" => nil }.map { |name, value| ROW.merge(name => value) }
    broken.concat(ROW.keys.map { |name| ROW.reject { |other, _value| other == name } })
    broken << []
    broken.each do |row|
      fixture = Fixture.new([Respond.new(200, JSON.generate(row)), Respond.new(200, JSON.generate({ items: [row] }))])
      assert_match(/not a response of a lock service/, assert_raises(ServerError) { fixture.locks.view("k") }.message)
      assert_raises(ServerError) { fixture.locks.list.to_a }
    end
    [{}, { items: {} }, { items: [], next_cursor: 5 }, { items: [], next_cursor: "" }].each do |page|
      fixture = Fixture.new([Respond.new(200, JSON.generate(page))])
      assert_raises(ServerError) { fixture.locks.list.to_a }
    end
  end

  def test_what_cannot_be_is_refused_before_anything_is_sent
    fixture = Fixture.new
    assert_match(/prefix must be empty/, assert_raises(ArgumentError) { fixture.locks.list("/") }.message)
    assert_match(/got "taken"/, assert_raises(ArgumentError) { fixture.locks.list(state: "taken") }.message)
    assert_raises(ArgumentError) { fixture.locks.view("/") }
    assert_empty fixture.network.seen
  end
end

# SDK-14: server-sent events from the bytes of their stream.
class TestEventReader < Minitest::Test
  include TestHelper

  def test_however_the_bytes_come_in_pieces
    text = ": hello\nid: 1-5\nretry: 1000\n\n: still here\n\nid: 1-6\r\nevent: acquired\r\ndata: {\"holder\":\r\n" \
           "data:\"höst\"}\r\n\r\nid: \u0001\nevent: x\ndata\n\nevent: cut off"
    whole = [["", "", "1-5"], ["acquired", "{\"holder\":\n\"höst\"}", "1-6"], ["x", "", nil]]
    [1, 2, 3, 7, 1000].each do |size|
      parser = SseParser.new
      events = text.b.scan(/.{1,#{size}}/mn).flat_map { |piece| parser.feed(piece) }
      assert_equal whole, events.map(&:to_a)
    end
    assert_equal({ "holder" => "höst" }, ServerSentEvent.new("acquired", whole[1][1], nil).body)
    ["", "[]", "{"].each { |data| assert_equal({}, ServerSentEvent.new("acquired", data, nil).body) }
  end

  def test_nothing_is_longer_than_the_bound
    [["data: #{'x' * SseParser::EVENT_BYTES_MAX}"], ["data: #{'x' * 40_000}\n"] * 2].each do |pieces|
      parser = SseParser.new
      assert_raises(SseParser::TooLongError) { pieces.each { |piece| parser.feed(piece) } }
    end
  end
end

# SDK-14: looks and events in whatever order they come.
class TestLeadings < Minitest::Test
  include TestHelper

  def test_the_fencing_token_says_what_is_newer
    tracker = LeadershipTracker.new
    tracker.update_from_view(view(held: true, fencing_token: 5, holder: "a"))
    tracker.update_from_event(event("released", 4))
    assert_equal "a", tracker.latest.holder
    tracker.update_from_event(event("acquired", 6, "b"))
    assert_equal ["b", 6, Time.utc(2026, 7, 20, 14)],
                 [tracker.latest.holder, tracker.latest.fencing_token, tracker.latest.since]
    tracker.update_from_event(event("expired", 6))
    refute_predicate tracker.latest, :held?
    tracker.update_from_event(event("renewed", 6, "b"))
    tracker.update_from_view(view(held: true, fencing_token: 6, holder: "b"))
    refute_predicate tracker.latest, :held?, "a lease that has ended does not come back"
    tracker.update_from_event(event("renewed", 7, "c"))
    assert_equal ["c", nil], [tracker.latest.holder, tracker.latest.since]
  end

  def test_what_is_no_such_event_says_nothing
    tracker = LeadershipTracker.new
    tracker.update_from_view(view(held: false))
    first = tracker.latest
    [event("waiting", nil), event("acquired", nil), event("acquired", 2**53), event("later", 5),
     ServerSentEvent.new("acquired", "{", nil)].each { |told| tracker.update_from_event(told) }
    assert_same first, tracker.latest
  end

  def test_two_are_the_same_if_both_are_free_or_both_held_with_the_same_token
    held = ->(token, holder) { Leadership.new(held: true, fencing_token: token, holder: holder) }
    assert_equal [held.call(5, "a"), Leadership.new(held: false, since: Time.now)],
                 [held.call(5, "b"), Leadership.new(held: false)]
    assert_equal held.call(5, "a").hash, held.call(5, "b").hash
    refute_equal held.call(5, "a"), held.call(6, "a")
  end

  private

  def view(**fields)
    LockView.new(key: KEY, waiters: 0, **fields)
  end

  def event(kind, token, holder = nil)
    body = { key: KEY, fencing_token: token, holder: holder, at: "2026-07-20T14:00:00.000Z", why: "because" }
    ServerSentEvent.new(kind, JSON.generate(body), nil)
  end
end

# SDK-14: who holds a lock, as it changes.
class TestWatching < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @holder = @fixture.server.client(holder: "host/1").locks
    @changes = Queue.new
  end

  def teardown
    @watcher&.kill&.join(PATIENCE_SECONDS)
  rescue VolcanoError # told in its test
    nil
  ensure
    @fixture.client.close
  end

  def test_first_how_it_is_then_each_change
    watch
    assert_equal [false, nil, nil], shown(@changes.pop)
    lease = @holder.acquire(KEY, ttl: 30)
    change = @changes.pop
    assert_equal [true, "host/1", lease.fencing_token], shown(change)
    assert_equal Testing::ManualClock::START, change.since
    @holder.renew(KEY, lease)
    @fixture.clock.advance(31)
    change = @changes.pop
    assert_equal [[false, nil, nil], Testing::ManualClock::START + 31], [shown(change), change.since]
    second = @holder.acquire(KEY, ttl: 30)
    assert_equal second.fencing_token, @changes.pop.fencing_token
    @fixture.others.force_release(KEY)
    refute_predicate @changes.pop, :held?
    @fixture.clock.settle
    assert_empty @changes
    assert_equal(["/locks/nightly/events", "/locks/nightly?view=full"], @fixture.network.seen.map(&:path))
  end

  def test_a_watch_goes_on_over_a_restart_and_tells_what_changed_meanwhile_once
    lease = @holder.acquire(KEY, ttl: 600)
    watch
    assert @changes.pop.held?
    @fixture.clock.settle
    @fixture.server.restart
    @fixture.clock.settle
    @fixture.clock.advance(5)
    assert_empty @changes, "the same is not told again"
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

  def test_a_stream_that_is_silent_is_left_and_one_that_says_something_is_not
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
    assert_operator @fixture.network.seen.length, :>, 3, "one that never begins is given a request's time"
  end

  def test_trouble_that_passes_is_ridden_out
    [Reset.new, DropBeforeSend.new, DropAfterSend.new, unavailable, respond(429, "lock_rate_limited"),
     respond(500, "internal")].each do |fault|
      fixture = Fixture.new([fault, Pass.new, fault])
      seen = Queue.new
      watcher = quiet_thread { fixture.locks.watch(KEY) { |change| seen << change } }
      eventually do
        fixture.clock.advance(0.1)
        !seen.empty?
      end
      refute_predicate seen.pop, :held?
      watcher.kill.join(PATIENCE_SECONDS)
    end
  end

  def test_what_time_does_not_mend_is_raised
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
    # An error of the caller's is not taken for the stream's.
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

  def test_closing_the_client_ends_it
    watch
    @changes.pop
    @fixture.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { @watcher.value }.message)
    assert_equal 0, @fixture.server.subscribers
  end

  # An Enumerator that nobody asks for more, in a fiber that is never resumed.
  def test_a_forgotten_watch_does_not_hear_for_ever
    forget_a_watch
    eventually do
      GC.start
      @fixture.clock.advance(15)
      @fixture.server.subscribers.zero?
    end
  end

  def test_each_run_through_the_enumerator_is_a_watch_of_its_own
    changes = @fixture.locks.watch(KEY)
    assert_empty @fixture.network.seen
    2.times { refute_predicate changes.first, :held? }
    refute_predicate changes.next, :held?
    lease = @holder.acquire(KEY, ttl: 30)
    assert_equal lease.fencing_token, changes.next.fencing_token
  end

  # A reader that is too slow makes the worker wait, not the memory grow.
  def test_real_time_what_is_not_read_is_bounded
    stream = EventStream.new(Request.new(verb: "GET", path: "/", headers: {}, timeout_seconds: 1.0), SystemClock.new)
    sent = 0
    transport = ->(_request) { flunk }
    transport.define_singleton_method(:stream) do |_request, &heard|
      loop do
        heard.call("x" * 10_000)
        sent += 1
      end
    end
    worker = quiet_thread { stream.run(transport) }
    eventually { sent == 6 }
    sleep 0.02
    assert_equal 6, sent
    assert_equal 70_000, stream.read(Float::INFINITY).bytesize
    eventually { sent > 6 }
    stream.cancel
    worker.join(PATIENCE_SECONDS)
  end

  # Over sockets, with the client's own transport.
  def test_real_time_a_stream_over_sockets
    server = SocketServer.new(@fixture.server)
    client = Client.new(api_url: server.url, service_key: "sk-x", timeout: 5)
    changes = client.locks.watch(KEY)
    refute_predicate changes.next, :held?
    lease = @holder.acquire(KEY, ttl: 30)
    assert_equal lease.fencing_token, changes.next.fencing_token
    server.hang_up
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

  def forget_a_watch
    Thread.new { @fixture.locks.watch(KEY).next }.join
  end
end
