# frozen_string_literal: true

require_relative "test_helper"

# SDK-11: waiting for a lock, under a clock that the test moves.
class TestWaiting < Minitest::Test
  include TestHelper

  LONG = 7_776_000
  SLICE = AcquireWait::WAIT_SLICE_SECONDS

  def test_it_is_granted_the_moment_it_is_released_with_one_request
    fixture, rival = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: 20) }
    fixture.clock.advance(3)
    fixture.others.release(KEY, rival)
    assert_operator waiting.value.fencing_token, :>, rival.fencing_token
    assert_equal [[POST], [{ "ttl_seconds" => 30, "wait_seconds" => 20.0 }]], [fixture.sent, bodies(fixture)]
  end

  def test_without_contention_it_costs_what_it_costs_without_waiting
    fixture = Fixture.new
    fixture.locks.acquire(KEY, ttl: 30, wait: 20)
    assert_equal [POST], fixture.sent
  end

  def test_without_a_wait_no_such_field_is_sent
    fixture, = held_by_a_rival
    [nil, 0, 0.0].each { |wait| assert_raises(LockHeldError) { fixture.locks.acquire(KEY, ttl: 30, wait: wait) } }
    assert_equal [{ "ttl_seconds" => 30 }] * 3, bodies(fixture)
  end

  def test_it_asks_slice_by_slice_with_the_same_ids_and_ends_in_contention
    fixture, = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: 110) }
    fixture.clock.advance(110)
    assert_raises(LockHeldError) { waiting.value }
    assert_equal([SLICE, SLICE, 10.0], bodies(fixture).map { |body| body["wait_seconds"] })
    assert_equal([60.0, 60.0, 20.0], fixture.network.seen.map(&:timeout_seconds))
    assert_equal 1, fixture.network.seen.map { |one| [one.token, one.request_id] }.uniq.length
    assert_equal [POST] * 3, fixture.sent, "the place is not kept for long, and nothing is held"
  end

  def test_it_waits_for_ever_if_it_is_to
    fixture, rival = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.clock.advance(3_600)
    fixture.others.release(KEY, rival)
    assert_equal 30, waiting.value.ttl_seconds
    assert_equal (3_600 / SLICE) + 1, fixture.sent.length
  end

  def test_it_keeps_its_turn_from_one_request_to_the_next
    fixture, rival = held_by_a_rival
    order = Queue.new
    mine = waiter(fixture) { fixture.locks.with_lock(KEY, ttl: 30, wait: 600) { order << :mine } }
    theirs = quiet_thread { fixture.others.with_lock(KEY, ttl: 30, wait: 600) { order << :theirs } }
    eventually { fixture.server.waiters(KEY) == 2 }
    fixture.clock.advance((SLICE * 3) + 0.5)
    fixture.others.release(KEY, rival)
    [mine, theirs].each(&:value)
    assert_equal(%i[mine theirs], Array.new(2) { order.pop })
  end

  def test_it_takes_over_from_a_holder_that_died
    fixture, = held_by_a_rival(ttl: 10)
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 60, wait: 20) && fixture.clock.now }
    fixture.clock.advance(20)
    assert_equal 11.0, waiting.value
  end

  def test_it_rides_out_failures_with_the_same_token_and_rests_between
    [DropBeforeSend.new, DropAfterSend.new, Reset.new, Hang.new, unavailable, respond(429, "lock_rate_limited"),
     respond(500, "internal"), Respond.new(502, "<html>")].each do |fault|
      fixture = Fixture.new([fault] * 3)
      waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 300, token: TOKEN) }
      lease = moved_until(fixture, waiting)
      assert_equal TOKEN, lease.token
      assert_equal [POST] * 4, fixture.sent.reject { |one| one == PATCH }, fault.inspect
      assert_operator fixture.clock.now, :>, 0.2, fault.inspect
    end
  end

  def test_it_goes_on_over_a_restart_of_the_server
    fixture, rival = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.clock.advance(5)
    fixture.server.restart
    fixture.clock.advance(5)
    fixture.others.release(KEY, rival)
    assert waiting.value
  end

  def test_a_retry_after_is_kept_and_one_beyond_the_wait_ends_it_at_once
    quota = -> { respond(429, "lock_rate_limited", headers: { "retry-after" => "40" }) }
    fixture = Fixture.new([quota.call])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    eventually { fixture.clock.next_due.between?(40, 44.1) }
    fixture.clock.advance(39.9)
    assert_equal [POST], fixture.sent
    fixture.clock.advance(5)
    assert waiting.value
    fixture.network.script << quota.call
    error = assert_raises(RateLimitedError) { fixture.locks.acquire("other", ttl: 30, wait: 10) }
    assert_equal 40, error.retry_after
  end

  def test_the_last_failure_is_told_and_what_may_have_been_got_is_given_back
    fixture = Fixture.new(otherwise: DropAfterSend.new)
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 10) }
    assert_raises(TransportError) { moved_until(fixture, waiting) }
    assert_equal DELETE, fixture.sent.last
    assert_operator fixture.sent.count(POST), :>=, 4
    assert_operator fixture.clock.now, :>=, 10 - Backoff::DELAY_SECONDS_MAX
    refute fixture.held?
  end

  def test_what_waiting_does_not_help_ends_it
    { [401, "invalid_credentials"] => AuthenticationError, [403, "missing_permission"] => PermissionDeniedError,
      [400, "invalid_wait"] => ValidationError, [409, "lock_ownership_lost"] => LockOwnershipLostError }
      .each do |(status, code), kind|
      fixture = Fixture.new([respond(status, code)])
      assert_raises(kind) { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
      assert_equal [POST], fixture.sent
    end
  end

  # LEASE-5: by the third request the lease that the first was granted is in its margin.
  def test_a_grant_that_ran_out_unheard_of_is_waited_for_anew_with_a_new_token
    fixture = Fixture.new([DropAfterSend.new, unavailable(retry_after: "9")])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 10, wait: 100, token: TOKEN) }
    eventually { fixture.clock.next_due.between?(9, 9.9) }
    fixture.clock.advance(9.9)
    lease = waiting.value
    assert_equal [POST, POST, POST, DELETE, POST], fixture.sent
    assert_equal ([TOKEN] * 4) + [lease.token], fixture.network.seen.map(&:token)
    assert fixture.locks.renew(KEY, lease)
  end

  # It cannot have lapsed, so whatever that is, asking on and on would not mend it.
  def test_a_new_token_that_is_told_of_a_loss_at_once_ends_the_wait
    fixture = Fixture.new([DropAfterSend.new], otherwise: respond(409, "lock_ownership_lost"))
    assert_raises(LockOwnershipLostError) { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_equal [POST, POST, DELETE, POST], fixture.sent
  end

  def test_a_loss_at_the_end_of_the_wait_is_told_and_given_back
    fixture = Fixture.new([DropAfterSend.new, Delay.new(14.5)])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 15, wait: 14.5) }
    eventually { fixture.sent == [POST, POST] }
    fixture.clock.advance(14.5)
    assert_raises(LockOwnershipLostError) { waiting.value }
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  # A server that knows nothing of waiting, or answers at once for whatever reason.
  def test_a_server_that_does_not_wait_is_not_hammered
    fixture = Fixture.new(otherwise: respond(409, "lock_held"))
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_raises(LockHeldError) { moved_until(fixture, waiting) }
    assert_includes 19..60, fixture.sent.length
  end

  def test_a_closed_client_gives_its_places_back
    fixture, rival = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.client.close
    error = assert_raises(VolcanoError) { waiting.value }
    assert_equal "this client is closed", error.message
    assert_equal [POST, DELETE], fixture.sent
    assert_equal 0, fixture.server.waiters(KEY)
    fixture.others.release(KEY, rival)
    refute fixture.held?
  end

  def test_a_client_that_is_closed_while_a_wait_rests_gives_the_place_back_too
    fixture, = held_by_a_rival
    waiting = waiter(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.network.script << unavailable(retry_after: "9")
    fixture.clock.advance(SLICE)
    eventually { fixture.clock.next_due > SLICE + 8 }
    fixture.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { waiting.value }.message)
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  # Many waits take nothing from the renewals beside them.
  def test_real_time_more_waits_than_the_client_has_threads_for_requests_keep_no_renewal
    fixture, rival = held_by_a_rival
    other = fixture.locks.acquire("other", ttl: 30)
    crowd = Array.new(RequestThreads::THREADS_MAX + 6) do
      quiet_thread { fixture.locks.with_lock(KEY, ttl: 30, wait: 600) { 1 } }
    end
    eventually { fixture.server.waiters(KEY) == crowd.length }
    assert fixture.locks.renew("other", other)
    fixture.others.release(KEY, rival)
    assert_equal crowd.length, crowd.sum(&:value)
  end

  def test_what_is_no_wait_is_refused_before_anything_is_sent
    fixture = Fixture.new
    [-1, -0.1, Float::NAN].each do |wait|
      error = assert_raises(ArgumentError) { fixture.locks.acquire(KEY, ttl: 30, wait: wait) }
      assert_match(/wait must be at least 0 seconds/, error.message)
      assert_raises(ArgumentError) { fixture.locks.with_lock(KEY, ttl: 30, wait: wait) { flunk } }
    end
    error = assert_raises(TypeError) { Arguments.checked_seconds("wait", "5") }
    assert_equal "wait must be a number of seconds, got String", error.message
    assert_raises(TypeError) { Arguments.checked_seconds("wait", true) }
    assert_empty fixture.network.seen
  end

  private

  def held_by_a_rival(ttl: LONG)
    fixture = Fixture.new
    [fixture, fixture.others.acquire(KEY, ttl: ttl)]
  end

  # A thread that stands in the line.
  def waiter(fixture, &work)
    thread = quiet_thread(&work)
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.settle
    thread
  end

  def bodies(fixture)
    fixture.network.seen.select { |one| one.verb == "POST" }.map { |one| JSON.parse(one.body) }
  end

  # What the thread gives, while time goes by.
  def moved_until(fixture, thread)
    eventually do
      fixture.clock.advance(0.1)
      !thread.alive?
    end
    thread.value
  end
end

# SDK-11, SDK-4: a lease that was waited for began nobody here knows when.
class TestConfirming < Minitest::Test
  include TestHelper

  def test_an_answer_within_a_third_of_the_ttl_counts_from_its_request
    fixture = Fixture.new([Takes.new(10)])
    lease = fixture.locks.acquire(KEY, ttl: 30, wait: 60)
    assert_equal [[POST], 30.0], [fixture.sent, lease.deadline]
  end

  def test_one_that_came_later_is_confirmed_by_one_renewal_and_counts_from_that
    [10.1, 24, 34].each do |seconds|
      fixture = Fixture.new([Delay.new(seconds)])
      waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { fixture.sent == [POST] }
      fixture.clock.advance(seconds)
      assert_equal seconds + 30, waiting.value.deadline
      assert_equal [POST, PATCH], fixture.sent
    end
  end

  def test_one_that_cannot_be_confirmed_is_given_back_and_waited_for_with_a_new_token
    fixture = Fixture.new([Takes.new(34)])
    lease = fixture.locks.acquire(KEY, ttl: 30, wait: 60, token: TOKEN)
    assert_equal [POST, PATCH, DELETE, POST], fixture.sent
    tokens = fixture.network.seen.map(&:token)
    assert_equal [TOKEN] * 3, tokens.first(3)
    refute_equal TOKEN, tokens.last
    assert_equal lease.token, tokens.last
  end

  def test_after_a_confirmation_that_failed_it_rests_as_the_server_says
    quota = respond(429, "lock_rate_limited", headers: { "retry-after" => "40" })
    fixture = Fixture.new([Takes.new(20), quota])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    eventually { fixture.sent == [POST, PATCH, DELETE] && fixture.clock.next_due.between?(60, 64) }
    fixture.clock.advance(44)
    assert waiting.value
  end

  def test_at_the_end_of_the_wait_that_is_told_and_given_back
    fixture = Fixture.new([Takes.new(20), respond(401, "invalid_credentials")])
    error = assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30, wait: 20) }
    assert_match(/could not be confirmed/, error.message)
    assert_equal [POST, PATCH, DELETE], fixture.sent
    refute fixture.held?
  end
end

# SDK-4: an acquisition ends 90 days after its grant, which may have been before the request that told of it.
class TestTheEndOfAnAcquisition < Minitest::Test
  include TestHelper

  LONG = 7_776_000

  def test_it_counts_from_before_the_grant_and_not_from_the_repetition_that_told_of_it
    [nil, 600].each do |wait|
      fixture = Fixture.new([Hang.new])
      lost = Queue.new
      holding = quiet_thread do
        fixture.locks.with_lock(KEY, ttl: LONG, wait: wait) do |guard|
          fixture.clock.jump(LONG - 0.001 - fixture.clock.now)
          lost << guard.lost?
          fixture.clock.jump(0.001)
          lost << guard.lost?
        end
      end
      eventually { fixture.sent == [POST] && fixture.held? }
      fixture.clock.advance((wait ? AcquireWait::WAIT_SLICE_SECONDS : 0) + 10)
      assert_raises(LockOwnershipLostError) { holding.value }
      assert_equal [[POST, POST, DELETE], false, true], [fixture.sent, lost.pop, lost.pop]
    end
  end

  def test_a_confirmation_does_not_move_it
    fixture = Fixture.new([Takes.new(40)])
    assert_equal 0.0, granted_after(fixture, ttl: 60)
    assert_equal [POST, PATCH], fixture.sent
  end

  # A token that was told that somebody else holds the lock was granted nothing before it asked.
  def test_the_time_in_the_line_is_no_part_of_it
    fixture = Fixture.new([DropAfterSend.new])
    rival = fixture.others.acquire(KEY, ttl: LONG)
    waiting = quiet_thread { granted_after(fixture, ttl: LONG) }
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.advance((AcquireWait::WAIT_SLICE_SECONDS * 3) + 1)
    fixture.others.release(KEY, rival)
    assert_equal AcquireWait::WAIT_SLICE_SECONDS * 2, waiting.value
  end

  private

  def granted_after(fixture, ttl:)
    acquisition = fixture.locks.instance_variable_get(:@operations).acquisition(KEY, ttl, wait: Float::INFINITY)
    acquisition.run
    acquisition.granted_after
  end
end

# SDK-11: rests between two requests.
class TestBackoff < Minitest::Test
  include TestHelper

  def test_they_grow_to_a_bound_with_jitter_and_begin_anew
    firsts = Array.new(20) { Backoff.new.seconds_after(trouble) }
    assert_operator firsts.uniq.length, :>, 10, "what fails for all at once does not bring all back at once"
    firsts.each { |first| assert_includes Backoff::DELAY_SECONDS_MIN..(2 * Backoff::DELAY_SECONDS_MIN), first }
    backoff = Backoff.new
    later = Array.new(40) { backoff.seconds_after(trouble) }
    later.each { |rest| assert_includes Backoff::DELAY_SECONDS_MIN..Backoff::DELAY_SECONDS_MAX, rest }
    assert_operator later.max, :>, 2 * Backoff::DELAY_SECONDS_MIN
    backoff.reset
    assert_includes Backoff::DELAY_SECONDS_MIN..(2 * Backoff::DELAY_SECONDS_MIN), backoff.seconds_after(trouble)
  end

  def test_a_retry_after_is_kept_and_lengthened_by_up_to_a_tenth_also_at_first
    told = RateLimitedError.new("spent", status: 429, retry_after: 30)
    unconfirmed = AcquireWait.const_get(:UnconfirmedError).new("unconfirmed", retry_after: 30, request_id: nil)
    [told, unconfirmed].each do |failure|
      20.times { assert_includes 30.0..33.0, Backoff.new.seconds_after(failure) }
    end
  end

  def test_no_answer_is_followed_by_none_at_first
    backoff = Backoff.new
    assert_equal 0.0, backoff.seconds_after(TransportError.new("broken"))
    assert_operator backoff.seconds_after(TransportError.new("broken")), :>=, Backoff::DELAY_SECONDS_MIN
  end

  private

  def trouble
    ServerError.new("in trouble", status: 500)
  end
end

# SDK-11, SDK-2, case 37: whatever cuts a wait short, in each of its phases, leaves neither a lease nor a place.
class TestInterruptedWaits < Minitest::Test
  include TestHelper

  class Cut < StandardError; end

  def test_real_time_a_wait_that_is_interrupted_in_the_line
    strikes.each do |strike|
      fixture = Fixture.new
      rival = fixture.others.acquire(KEY, ttl: 30)
      thread = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30, wait: Float::INFINITY) { flunk } }
      eventually { fixture.server.waiters(KEY) == 1 }
      cut(thread, strike)
      assert_equal [POST, DELETE], fixture.sent
      assert_equal 0, fixture.server.waiters(KEY)
      fixture.others.release(KEY, rival)
      refute fixture.held?
    end
  end

  def test_real_time_a_wait_that_is_interrupted_while_it_rests
    strikes.each do |strike|
      fixture = Fixture.new([respond(429, "lock_rate_limited", headers: { "retry-after" => "60" })])
      thread = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
      eventually { fixture.clock.next_due > TestWaiting::SLICE + 10 && fixture.clock.next_due < 100 }
      cut(thread, strike)
      assert_equal [POST, DELETE], fixture.sent
    end
  end

  def test_real_time_a_wait_that_is_interrupted_while_its_lease_is_confirmed
    strikes.each do |strike|
      fixture = Fixture.new([Takes.new(20), Hang.new])
      thread = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { fixture.sent == [POST, PATCH] }
      cut(thread, strike)
      assert_equal [POST, PATCH, DELETE], fixture.sent
      refute fixture.held?
    end
  end

  def test_real_time_a_timeout_around_a_wait
    fixture = Fixture.new
    fixture.others.acquire(KEY, ttl: 30)
    assert_raises(Timeout::Error) do
      Timeout.timeout(0.05) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    end
    assert_equal [POST, DELETE], fixture.sent
    assert_equal 0, fixture.server.waiters(KEY)
  end

  # Ctrl-C, which Ruby lets nothing defer.
  def test_real_time_ctrl_c_gives_the_place_back
    program = <<~RUBY
      require "volcano_locks/testing"
      kit = VolcanoLocks::Testing
      server = kit::FakeLocks.new
      network = kit::FaultyTransport.new(server, server.clock)
      client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", clock: server.clock, transport: network)
      server.client.locks.acquire("k", ttl: 30)
      Thread.new do
        sleep 0.001 until server.waiters("k") == 1
        Process.kill("INT", Process.pid)
      end
      begin
        client.locks.with_lock("k", ttl: 30, wait: Float::INFINITY) { puts "body" }
      rescue Interrupt
        puts network.seen.map(&:verb).join(" "), server.waiters("k")
      end
    RUBY
    command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-e"]
    assert_equal "POST DELETE\n0\n", IO.popen([*command, program], &:read)
  end

  private

  def strikes
    [->(thread) { thread.raise(Cut) }, lambda(&:kill)]
  end

  def cut(thread, strike)
    strike.call(thread)
    thread.join(PATIENCE_SECONDS) || flunk("it hangs")
  rescue Cut
    nil
  end
end

# SDK-12: holding at least so long.
class TestHoldingOn < Minitest::Test
  include TestHelper

  def test_a_job_that_ends_sooner_leaves_the_lock_taken_until_then
    fixture = Fixture.new
    assert_equal(:done, fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do
                          fixture.clock.advance(0.2) || :done
                        end)
    assert_equal [[POST, PATCH], '{"ttl_seconds":60}'], [fixture.sent, fixture.network.seen.last.body]
    fixture.clock.jump(60.7)
    assert fixture.held?
    fixture.clock.jump(0.3)
    refute fixture.held?
  end

  def test_a_long_lease_is_shortened_to_the_rest_in_whole_seconds_but_not_below_the_shortest
    { 20.5 => 40, 59 => 5, 0.1 + 0.2 => 60 }.each do |seconds, rest|
      fixture = Fixture.new
      fixture.locks.with_lock(KEY, ttl: 3_600, hold_at_least: 60) { fixture.clock.jump(seconds) }
      assert_equal JSON.generate({ ttl_seconds: rest }), fixture.network.seen.last.body
    end
  end

  def test_a_job_that_took_as_long_releases_as_ever
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 600, hold_at_least: 10) { fixture.clock.jump(10) }
    assert_equal [POST, DELETE], fixture.sent
  end

  def test_it_counts_from_the_entering_not_from_the_asking
    fixture = Fixture.new
    rival = fixture.others.acquire(KEY, ttl: 600)
    working = quiet_thread { fixture.locks.with_lock(KEY, ttl: 600, wait: 200, hold_at_least: 60) { 1 } }
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.advance(100)
    fixture.others.release(KEY, rival)
    assert_equal 1, working.value
    assert_equal [PATCH, '{"ttl_seconds":60}'], [fixture.sent.last, fixture.network.seen.last.body]
  end

  def test_whatever_way_the_body_ends
    [-> { raise BodyError }, -> { throw :out }].each do |way|
      fixture = Fixture.new
      catch(:out) do
        fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { way.call }
      rescue BodyError
        nil
      end
      assert_equal [POST, PATCH], fixture.sent
    end
  end

  def test_a_last_renewal_that_is_not_confirmed_is_told_quietly_and_the_lease_expires_when_it_would_have
    fixture = Fixture.new
    guard = nil
    told = without_warnings do
      fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do |given|
        guard = given
        fixture.network.otherwise = Reset.new
      end
    end
    assert_kind_of TransportError, guard.release_error
    assert_match(/hold_at_least/, told.join)
    assert_equal [POST, PATCH, PATCH], fixture.sent
    assert fixture.held?
  end

  def test_a_loss_that_only_the_last_renewal_finds_is_a_loss
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { fixture.others.force_release(KEY) }
    end
    assert_equal 409, error.status
  end

  def test_a_lost_lease_is_not_held_on_to
    fixture = Fixture.new
    assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 600) { fixture.clock.jump(31) }
    end
    assert_equal [POST, DELETE], fixture.sent
  end

  # A renewal that landed after the last one would end the lease too soon.
  def test_real_time_a_renewal_under_way_comes_to_its_end_first
    fixture = Fixture.new
    order = Queue.new
    begun = Queue.new
    fixture.server.define_singleton_method(:call) do |request|
      if request.verb == "PATCH" && request.body == '{"ttl_seconds":30}'
        begun << true
        sleep 0.05
      end
      super(request).tap { order << request.body }
    end
    fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do
      fixture.clock.jump(11)
      begun.pop
    end
    assert_equal(['{"ttl_seconds":30}', '{"ttl_seconds":30}', '{"ttl_seconds":49}'], Array.new(3) { order.pop })
  end

  def test_what_is_no_such_time_is_refused_before_anything_is_sent
    fixture = Fixture.new
    [-1, Float::INFINITY, 7_776_001].each do |seconds|
      error = assert_raises(ArgumentError) { fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: seconds) { flunk } }
      assert_match(/hold_at_least must be from 0 to 7776000 seconds/, error.message)
    end
    assert_empty fixture.network.seen
  end
end
