# frozen_string_literal: true

require_relative "test_helper"
require_relative "wire_server"

# SDK-15: one lock and lists of locks, for whoever looks.
class TestLooking < Minitest::Test
  include Kit

  ROW = {
    "key" => "k", "held" => true, "holder" => "host/1", "acquired_at" => "2026-07-20T14:00:00.000Z",
    "renewed_at" => "2026-07-20T14:00:10.000Z", "expires_at" => "2026-07-20T14:00:40.000Z", "ttl_seconds" => 30,
    "fencing_token" => 7, "waiters" => 2
  }.freeze

  def test_a_view_tells_who_holds_a_lock_and_until_when
    stage = Stage.new
    lease = stage.server.client(holder: "host/1").locks.acquire(KEY, ttl: 30)
    stage.clock.jump(10)
    stage.others.renew(KEY, lease, ttl: 60)
    start = Testing::ManualClock::START
    view = stage.locks.view(KEY)
    assert_equal [KEY, true, start, start + 10, start + 70, 60, lease.fencing_token, 0],
                 [view.key, view.held?, view.acquired_at, view.renewed_at, view.expires_at, view.ttl_seconds,
                  view.fencing_token, view.waiters]
    assert_predicate view, :frozen?
  end

  def test_a_lock_nobody_has_used_is_a_free_one
    view = Stage.new.locks.view(KEY)
    assert_equal LockView.new(key: KEY, held: false), view
    refute_predicate view, :held?
  end

  def test_a_list_comes_in_pages_when_they_are_needed
    stage = Stage.new
    keys = (0...250).map { |number| format("k%03d", number) }
    keys.shuffle(random: Random.new(1)).each { |key| stage.others.acquire(key, ttl: 30) }
    views = stage.locks.list("k")
    assert_empty stage.network.seen
    assert_equal "k000", views.next.key
    assert_equal 1, stage.network.seen.length
    assert_equal keys, views.map(&:key)
    assert_equal 4, stage.network.seen.length
  end

  def test_a_list_is_of_a_prefix_and_a_state
    stage = Stage.new
    freed = stage.others.acquire("a:1", ttl: 30)
    ["a:2", "b:1"].each { |key| stage.others.acquire(key, ttl: 30) }
    stage.others.release("a:1", freed)
    seen = ->(*args, **options) { stage.locks.list(*args, **options).map(&:key) }
    assert_equal [%w[a:1 a:2 b:1], %w[a:1 a:2], %w[a:2], %w[a:1]],
                 [seen.call, seen.call("a:"), seen.call("a:", state: :held), seen.call(state: "free")]
    given = []
    assert_nil(stage.locks.list("b") { |view| given << view.key })
    assert_equal ["b:1"], given
    assert_equal "/locks?prefix=a%3A&state=held&limit=100", stage.network.seen[2].path
  end

  def test_a_cursor_is_sent_back_as_it_came
    pages = [{ items: [ROW], next_cursor: "locks.a:/é& " }, { items: [], next_cursor: nil }]
    stage = Stage.new(pages.map { |page| Answers.new(200, JSON.generate(page)) })
    assert_equal(["k"], stage.locks.list("a:").map(&:key))
    assert_equal "/locks?prefix=a%3A&state=all&limit=100&cursor=locks.a%3A%2F%C3%A9%26%20", stage.network.seen.last.path
  end

  def test_what_is_no_row_is_no_answer
    broken = { "held" => "yes", "holder" => 5, "acquired_at" => "yesterday", "ttl_seconds" => true,
               "fencing_token" => 2**53, "waiters" => nil, "key" => nil }.map { |name, value| ROW.merge(name => value) }
    broken.concat(ROW.keys.map { |name| ROW.reject { |other, _value| other == name } })
    broken << []
    broken.each do |row|
      stage = Stage.new([Answers.new(200, JSON.generate(row)), Answers.new(200, JSON.generate({ items: [row] }))])
      assert_match(/not an answer of a lock service/, assert_raises(ServerError) { stage.locks.view("k") }.message)
      assert_raises(ServerError) { stage.locks.list.to_a }
    end
    [{}, { items: {} }, { items: [], next_cursor: 5 }, { items: [], next_cursor: "" }].each do |page|
      stage = Stage.new([Answers.new(200, JSON.generate(page))])
      assert_raises(ServerError) { stage.locks.list.to_a }
    end
  end

  def test_what_cannot_be_is_refused_before_anything_is_sent
    stage = Stage.new
    assert_match(/prefix must be empty/, assert_raises(ArgumentError) { stage.locks.list("/") }.message)
    assert_match(/got "taken"/, assert_raises(ArgumentError) { stage.locks.list(state: "taken") }.message)
    assert_raises(ArgumentError) { stage.locks.view("/") }
    assert_empty stage.network.seen
  end
end

# SDK-14: server-sent events from the bytes of their stream.
class TestEventReader < Minitest::Test
  include Kit

  def test_however_the_bytes_come_in_pieces
    text = ": hello\nid: 1-5\nretry: 1000\n\n: still here\n\nid: 1-6\r\nevent: acquired\r\ndata: {\"holder\":\r\n" \
           "data:\"höst\"}\r\n\r\nid: \u0001\nevent: x\ndata\n\nevent: cut off"
    whole = [["", "", "1-5"], ["acquired", "{\"holder\":\n\"höst\"}", "1-6"], ["x", "", nil]]
    [1, 2, 3, 7, 1000].each do |size|
      reader = EventReader.new
      events = text.b.scan(/.{1,#{size}}/mn).flat_map { |piece| reader.take(piece) }
      assert_equal whole, events.map(&:to_a)
    end
    assert_equal({ "holder" => "höst" }, Event.new("acquired", whole[1][1], nil).body)
    ["", "[]", "{"].each { |data| assert_equal({}, Event.new("acquired", data, nil).body) }
  end

  def test_nothing_is_longer_than_the_bound
    [["data: #{'x' * EventReader::BLOCK_BYTES_MAX}"], ["data: #{'x' * 40_000}\n"] * 2].each do |pieces|
      reader = EventReader.new
      assert_raises(EventReader::TooLongError) { pieces.each { |piece| reader.take(piece) } }
    end
  end
end

# SDK-14: looks and events in whatever order they come.
class TestLeadings < Minitest::Test
  include Kit

  def test_the_fencing_token_says_what_is_newer
    leadings = Leadings.new
    leadings.looked(view(held: true, fencing_token: 5, holder: "a"))
    leadings.happened(event("released", 4))
    assert_equal "a", leadings.latest.holder
    leadings.happened(event("acquired", 6, "b"))
    assert_equal ["b", 6, Time.utc(2026, 7, 20, 14)],
                 [leadings.latest.holder, leadings.latest.fencing_token, leadings.latest.since]
    leadings.happened(event("expired", 6))
    refute_predicate leadings.latest, :held?
    leadings.happened(event("renewed", 6, "b"))
    leadings.looked(view(held: true, fencing_token: 6, holder: "b"))
    refute_predicate leadings.latest, :held?, "a lease that has ended does not come back"
    leadings.happened(event("renewed", 7, "c"))
    assert_equal ["c", nil], [leadings.latest.holder, leadings.latest.since]
  end

  def test_what_is_no_such_event_says_nothing
    leadings = Leadings.new
    leadings.looked(view(held: false))
    first = leadings.latest
    [event("waiting", nil), event("acquired", nil), event("acquired", 2**53), event("later", 5),
     Event.new("acquired", "{", nil)].each { |told| leadings.happened(told) }
    assert_same first, leadings.latest
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
    Event.new(kind, JSON.generate(body), nil)
  end
end

# SDK-14: who holds a lock, as it changes.
class TestWatching < Minitest::Test
  include Kit

  def setup
    @stage = Stage.new
    @holder = @stage.server.client(holder: "host/1").locks
    @changes = Queue.new
  end

  def teardown
    @watcher&.kill&.join(PATIENCE_SECONDS)
  rescue VolcanoError # told in its test
    nil
  ensure
    @stage.client.close
  end

  def test_first_how_it_is_then_each_change
    watch
    assert_equal [false, nil, nil], shown(@changes.pop)
    lease = @holder.acquire(KEY, ttl: 30)
    change = @changes.pop
    assert_equal [true, "host/1", lease.fencing_token], shown(change)
    assert_equal Testing::ManualClock::START, change.since
    @holder.renew(KEY, lease)
    @stage.clock.advance(31)
    change = @changes.pop
    assert_equal [[false, nil, nil], Testing::ManualClock::START + 31], [shown(change), change.since]
    second = @holder.acquire(KEY, ttl: 30)
    assert_equal second.fencing_token, @changes.pop.fencing_token
    @stage.others.force_release(KEY)
    refute_predicate @changes.pop, :held?
    @stage.clock.settle
    assert_empty @changes
    assert_equal(["/locks/nightly/events", "/locks/nightly?view=full"], @stage.network.seen.map(&:path))
  end

  def test_a_watch_goes_on_over_a_restart_and_tells_what_changed_meanwhile_once
    lease = @holder.acquire(KEY, ttl: 600)
    watch
    assert @changes.pop.held?
    @stage.clock.settle
    @stage.server.restart
    @stage.clock.settle
    @stage.clock.advance(5)
    assert_empty @changes, "the same is not told again"
    asked = @stage.network.seen.map { |one| one.headers["Last-Event-ID"] }.compact
    assert_match(/\A1-\d+\z/, asked.first)
    @stage.network.otherwise = Reset.new
    @stage.server.restart
    @holder.release(KEY, lease)
    @stage.clock.advance(20)
    assert_empty @changes
    @stage.network.otherwise = Pass.new
    @stage.clock.advance(10)
    refute_predicate @changes.pop, :held?
  end

  def test_a_stream_that_is_silent_is_left_and_one_that_says_something_is_not
    @stage.network.script << Pass.new << Pass.new << Hang.new
    watch
    @changes.pop
    @stage.clock.advance(300)
    assert_equal 1, @stage.server.hearers
    assert_equal 2, @stage.network.seen.length
    @stage.server.restart
    @stage.clock.settle
    assert_equal 3, @stage.network.seen.length
    @stage.clock.advance(11)
    assert_operator @stage.network.seen.length, :>, 3, "one that never begins is given a request's time"
  end

  def test_trouble_that_passes_is_ridden_out
    [Reset.new, DropBeforeSend.new, DropAfterSend.new, unavailable, answers(429, "lock_rate_limited"),
     answers(500, "internal")].each do |fault|
      stage = Stage.new([fault, Pass.new, fault])
      seen = Queue.new
      watcher = quiet_thread { stage.locks.watch(KEY) { |change| seen << change } }
      eventually do
        stage.clock.advance(0.1)
        !seen.empty?
      end
      refute_predicate seen.pop, :held?
      watcher.kill.join(PATIENCE_SECONDS)
    end
  end

  def test_what_time_does_not_mend_is_raised
    { answers(401, "invalid_credentials") => AuthenticationError, answers(404, "not_found") => NotFoundError,
      Answers.new(200, "<html>") => ServerError }.each do |fault, kind|
      assert_raises(kind) { Stage.new([fault]).locks.watch(KEY) { flunk } }
    end
    assert_raises(ArgumentError) { @stage.locks.watch("/") }
  end

  def test_leaving_the_loop_ends_the_stream
    assert_equal(:left, @stage.locks.watch(KEY) { break :left })
    eventually { @stage.server.hearers.zero? }
    assert_raises(BodyError) { @stage.locks.watch(KEY) { raise BodyError } }
    # An error of the caller's is not taken for the stream's.
    assert_raises(TransportError) { @stage.locks.watch(KEY) { raise TransportError, "mine" } }
    assert_raises(StopIteration) { @stage.locks.watch(KEY) { raise StopIteration } }
    assert_equal(1, @stage.locks.watch(KEY).first(1).length)
    eventually { @stage.server.hearers.zero? }
  end

  def test_real_time_interrupts_end_the_stream
    watch
    @changes.pop
    @watcher.kill.join(PATIENCE_SECONDS)
    eventually { @stage.server.hearers.zero? }
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { @stage.locks.watch(KEY) { nil } } }
    eventually { @stage.server.hearers.zero? }
  end

  def test_closing_the_client_ends_it
    watch
    @changes.pop
    @stage.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { @watcher.value }.message)
    assert_equal 0, @stage.server.hearers
  end

  # An Enumerator that nobody asks for more, in a fiber that is never resumed.
  def test_a_forgotten_watch_does_not_hear_for_ever
    forget_a_watch
    eventually do
      GC.start
      @stage.clock.advance(15)
      @stage.server.hearers.zero?
    end
  end

  def test_each_run_through_the_enumerator_is_a_watch_of_its_own
    changes = @stage.locks.watch(KEY)
    assert_empty @stage.network.seen
    2.times { refute_predicate changes.first, :held? }
    refute_predicate changes.next, :held?
    lease = @holder.acquire(KEY, ttl: 30)
    assert_equal lease.fencing_token, changes.next.fencing_token
  end

  # A reader that is too slow makes the worker wait, not the memory grow.
  def test_real_time_what_is_not_read_is_bounded
    stream = Stream.new(Request.new(verb: "GET", path: "/", headers: {}, timeout_seconds: 1.0), SystemClock.new)
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
    stream.drop
    worker.join(PATIENCE_SECONDS)
  end

  # Over sockets, with the client's own transport.
  def test_real_time_a_stream_over_sockets
    server = WireServer.new(@stage.server)
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
    eventually { @stage.server.hearers.zero? }
  ensure
    server&.close
  end

  private

  def watch
    @watcher = quiet_thread { @stage.locks.watch(KEY) { |change| @changes << change } }
  end

  def shown(change)
    [change.held?, change.holder, change.fencing_token]
  end

  def forget_a_watch
    Thread.new { @stage.locks.watch(KEY).next }.join
  end
end
