# frozen_string_literal: true

require_relative "test_helper"

# SDK-13: leading for as long as it can be.
class TestLeading < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @terms = Queue.new
  end

  def test_a_block_that_returns_gives_the_lock_back_and_its_result
    assert_equal(:done, @fixture.locks.lead(KEY, ttl: 30) { :done })
    assert_equal [POST, DELETE], @fixture.sent
    assert_equal(:left, @fixture.locks.lead(KEY, ttl: 30) { break :left })
    refute @fixture.held?
  end

  def test_it_campaigns_until_it_leads
    rival = @fixture.others.acquire(KEY, ttl: 600)
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 30, &:fencing_token) }
    eventually { @fixture.server.waiters(KEY) == 1 }
    @fixture.clock.advance(100)
    @fixture.others.release(KEY, rival)
    assert_operator leading.value, :>, rival.fencing_token
  end

  # Exactly one end for each start, and the next campaign begins after it.
  def test_a_loss_that_the_block_was_told_of_leads_to_the_next_campaign
    ends = 0
    result = @fixture.locks.lead(KEY, ttl: 30) do |guard|
      @terms << guard.fencing_token
      next :done if @terms.length == 3

      assert_equal ends, @terms.length - 1
      @fixture.others.force_release(KEY)
      @fixture.clock.advance(11)
      guard.raise_if_lost!
    ensure
      ends += 1
    end
    assert_equal [:done, 3], [result, ends]
    tokens = Array.new(3) { @terms.pop }
    assert_equal tokens.uniq.sort, tokens
  end

  def test_a_block_that_returns_after_a_loss_campaigns_again_too
    result = @fixture.locks.lead(KEY, ttl: 30) do |guard|
      @terms << guard
      @fixture.clock.jump(31) if @terms.length == 1
      @terms.length
    end
    assert_equal 2, result
    # One that is only found by the release.
    leading = quiet_thread do
      @fixture.locks.lead("other", ttl: 30) do |guard|
        @terms << guard
        next @terms.length if @terms.length == 4

        @fixture.others.force_release("other")
        @rival = @fixture.others.acquire("other", ttl: 600)
      end
    end
    eventually { @fixture.server.waiters("other") == 1 }
    @fixture.others.release("other", @rival)
    assert_equal 4, leading.value
  end

  def test_what_the_block_raises_is_raised
    error = assert_raises(BodyError) do
      @fixture.locks.lead(KEY, ttl: 30) do
        @fixture.clock.jump(31)
        raise BodyError
      end
    end
    assert_equal [LockOwnershipLostError], VolcanoLocks.attached_errors(error).map(&:class)
    [LockOwnershipLostError, LockHeldError].each do |kind|
      mine = kind.new("mine")
      assert_same(mine, assert_raises(kind) { @fixture.locks.lead(KEY, ttl: 30) { raise mine } })
    end
  end

  def test_stop_ends_a_campaign_and_gives_the_place_back
    @fixture.others.acquire(KEY, ttl: 600)
    stop = false
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 30, stop: -> { stop }) { flunk } }
    eventually { @fixture.server.waiters(KEY) == 1 }
    @fixture.clock.advance(51)
    stop = true
    @fixture.clock.advance(0.4)
    assert_nil leading.value
    assert_equal [POST, POST, DELETE], @fixture.sent
    assert_equal 0, @fixture.server.waiters(KEY)
  end

  def test_stop_ends_a_rest_too
    @fixture.network.otherwise = respond(429, "lock_rate_limited", headers: { "retry-after" => "60" })
    stop = false
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 30, stop: -> { stop }) { flunk } }
    eventually { @fixture.sent == [POST] }
    @fixture.clock.advance(1)
    stop = true
    @fixture.clock.advance(0.4)
    assert_nil leading.value
  end

  def test_while_the_block_runs_stop_is_for_the_block_and_after_it_no_campaign_begins
    stop = false
    assert_nil(@fixture.locks.lead(KEY, ttl: 30, stop: -> { stop }) do |guard|
      stop = true
      @fixture.clock.advance(100)
      refute guard.lost?
      @fixture.clock.jump(31)
    end)
    assert_equal 1, @fixture.sent.count(POST)
    assert_nil(@fixture.locks.lead(KEY, ttl: 30, stop: -> { true }) { flunk })
  end

  # SDK-11, LEASE-5: by the third request the lease that the first was granted is in its margin.
  def test_a_grant_that_ran_out_unheard_of_ends_no_campaign
    @fixture.network.script << DropAfterSend.new << unavailable(retry_after: "9")
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 10) { |guard| guard.lease.token } }
    eventually { @fixture.clock.next_due.between?(9, 9.9) }
    @fixture.clock.advance(9.9)
    token = leading.value
    assert_equal [POST, POST, POST, DELETE, POST, DELETE], @fixture.sent
    assert_equal(([false] * 4) + ([true] * 2), @fixture.network.seen.map { |one| one.token == token })
  end

  # SDK-11: nothing of it can have been granted before, so asking on and on would not mend it.
  def test_a_first_request_that_is_told_of_a_loss_ends_the_campaign
    @fixture.network.script << respond(409, "lock_ownership_lost")
    assert_raises(LockOwnershipLostError) { @fixture.locks.lead(KEY, ttl: 30) { flunk } }
    assert_equal [POST], @fixture.sent
  end

  def test_closing_the_client_ends_a_campaign
    @fixture.others.acquire(KEY, ttl: 600)
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 30) { flunk } }
    eventually { @fixture.server.waiters(KEY) == 1 }
    @fixture.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { leading.value }.message)
    assert_equal 0, @fixture.server.waiters(KEY)
  end

  def test_what_time_does_not_mend_is_raised
    @fixture.network.script << respond(401, "invalid_credentials")
    assert_raises(AuthenticationError) { @fixture.locks.lead(KEY, ttl: 30) { flunk } }
  end

  def test_mistakes_are_refused_before_anything_is_sent
    assert_raises(ArgumentError) { @fixture.locks.lead("/", ttl: 30, stop: -> { true }) { flunk } }
    assert_raises(ArgumentError) { @fixture.locks.lead(KEY, ttl: 4, stop: -> { true }) { flunk } }
    error = assert_raises(TypeError) { Leader.new(true) { flunk } }
    assert_match(/stop must respond to call/, error.message)
    assert_empty @fixture.network.seen
  end
end

# SDK-16: functions that run under a lock.
class TestExclusive < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @locks = @fixture.locks
  end

  def test_each_call_is_a_block_of_its_own
    seen = []
    report = @locks.exclusive("report-{day}-{part}", ttl: 60) do |day, part: 0, &given|
      seen << @fixture.others.list.map { |view| [view.key, view.held?] }
      given.call(day, part)
    end
    assert_equal(["mon", 5], report.call("mon", part: 5) { |*args| args })
    assert_equal [[["report-mon-5", true]]], seen
    refute @fixture.held?("report-mon-5")
    assert_equal([:tue, "x"], report.call(:tue, part: "x") { |*args| args })
  end

  def test_a_method_is_wrapped_as_it_is
    report = @locks.exclusive("report-{day}", ttl: 60, &method(:method_to_wrap))
    assert_equal [:mon, 7, @fixture.server.clock.now], report.call(:mon, more: 7)
    assert_raises(ArgumentError) { report.call(:mon, :tue, :wed) }
    refute @fixture.held?("report-mon")
  end

  def test_the_guard_comes_if_it_is_asked_for_and_left_out
    with = @locks.exclusive(KEY, ttl: 60) { |guard:, **rest| [guard, rest] }
    guard, rest = with.call(other: 1)
    assert_kind_of LockGuard, guard
    assert_equal [KEY, { other: 1 }], [guard.key, rest]
    assert_equal(:mine, with.call(guard: :mine).first)
    assert_equal([[1], {}], @locks.exclusive(KEY, ttl: 60) { |*args, **named| [args, named] }.call(1))
  end

  def test_on_held_raise_is_what_is_left_out
    @fixture.others.acquire(KEY, ttl: 600)
    assert_raises(LockHeldError) { @locks.exclusive(KEY, ttl: 60) { flunk }.call }
    assert_raises(LockHeldError) { @locks.exclusive(KEY, ttl: 60, on_held: :raise) { flunk }.call }
  end

  def test_on_held_skip_says_nothing_and_gives_nothing
    @fixture.others.acquire(KEY, ttl: 600)
    assert_nil(@locks.exclusive(KEY, ttl: 60, on_held: :skip) { flunk }.call)
    # What the function itself raises is an error like any other.
    mine = LockHeldError.new("mine")
    failing = @locks.exclusive("other", ttl: 60, on_held: "skip") { raise mine }
    assert_same(mine, assert_raises(LockHeldError) { failing.call })
  end

  def test_on_held_wait_waits_for_ever
    rival = @fixture.others.acquire(KEY, ttl: 6_000)
    waiting = quiet_thread { @locks.exclusive(KEY, ttl: 60, on_held: :wait) { :done }.call }
    eventually { @fixture.server.waiters(KEY) == 1 }
    @fixture.clock.advance(1_000)
    @fixture.others.release(KEY, rival)
    assert_equal :done, waiting.value
  end

  def test_with_hold_at_least
    @locks.exclusive(KEY, ttl: 60, hold_at_least: 100) { nil }.call
    assert_equal '{"ttl_seconds":100}', @fixture.network.seen.last.body
  end

  def test_a_loss_is_the_blocks
    failing = @locks.exclusive(KEY, ttl: 60, on_held: :skip) { @fixture.clock.jump(61) }
    assert_raises(LockOwnershipLostError) { failing.call }
  end

  def test_names_that_are_none_are_refused_when_the_function_is_made
    ["report-{month}", "report-{guard}", "{day}-{month}"].each do |key|
      error = assert_raises(ArgumentError) { @locks.exclusive(key, ttl: 60) { |day, guard:| [day, guard] } }
      assert_match(/not an argument of the block/, error.message)
    end
    ["report-{day", "report-}", "report {day}", "{Day}", "", "report/{day}"].each do |key|
      assert_raises(ArgumentError, key) { @locks.exclusive(key, ttl: 60) { |day| day } }
    end
    assert_match(/on_held must be/,
                 assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 60, on_held: :never) { 1 } }.message)
    assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 4) { 1 } }
    assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 60, hold_at_least: -1) { 1 } }
    assert_empty @fixture.network.seen
  end

  def test_an_argument_that_gives_no_key_is_refused_by_the_call
    report = @locks.exclusive("report-{day}", ttl: 60) { |day = "mon"| flunk day }
    [[], [nil], ["mon day"], ["/"], ["é"]].each { |args| assert_raises(ArgumentError) { report.call(*args) } }
    any = @locks.exclusive("report-{day}", ttl: 60) { |**named| named }
    assert_equal({ day: 5 }, any.call(day: 5))
    assert_raises(ArgumentError) { any.call }
    assert_equal [POST, DELETE], @fixture.sent
  end

  private

  def method_to_wrap(day, _later = nil, guard:, more: 0)
    assert_equal "report-#{day}", guard.key
    [day, more, @fixture.clock.now]
  end
end
