# frozen_string_literal: true

require_relative "../test_helper"

# SDK-11: waiting for a lock.
class TestAcquireWait < Minitest::Test
  include TestHelper

  LONG = 7_776_000
  SLICE = AcquireWait::WAIT_SLICE_SECONDS

  def test_without_wait_the_request_has_no_wait_seconds
    fixture, = fixture_with_rival
    [nil, 0, 0.0].each { |wait| assert_raises(LockHeldError) { fixture.locks.acquire(KEY, ttl: 30, wait: wait) } }
    assert_equal [{ "ttl_seconds" => 30 }] * 3, bodies(fixture)
  end

  def test_a_long_wait_is_several_requests_with_the_same_ids_and_ends_with_lock_held
    fixture, = fixture_with_rival
    waiting = queued_thread(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: 110) }
    fixture.clock.advance(110)
    assert_raises(LockHeldError) { waiting.value }
    assert_equal([SLICE, SLICE, 10.0], bodies(fixture).map { |body| body["wait_seconds"] })
    assert_equal([60.0, 60.0, 20.0], fixture.network.seen.map(&:timeout_seconds))
    assert_equal 1, fixture.network.seen.map { |one| [one.token, one.request_id] }.uniq.length
    assert_equal [POST] * 3, fixture.sent, "no release is needed: nothing is held, and the waiter is removed soon"
  end

  def test_a_wait_continues_after_transient_failures_with_back_off_and_the_same_token
    [DropBeforeSend.new, DropAfterSend.new, Reset.new, Hang.new, unavailable, respond(429, "lock_rate_limited"),
     respond(500, "internal"), Respond.new(502, "<html>")].each do |fault|
      fixture = Fixture.new([fault] * 3)
      waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 300, token: TOKEN) }
      lease = advance_until_over(fixture, waiting)
      assert_equal TOKEN, lease.token
      assert_equal [POST] * 4, fixture.sent.reject { |one| one == PATCH }, fault.inspect
      assert_operator fixture.clock.now, :>, 0.2, fault.inspect
    end
  end

  def test_a_retry_after_beyond_the_wait_ends_it_at_once
    fixture = Fixture.new([respond(429, "lock_rate_limited", headers: { "retry-after" => "40" })])
    error = assert_raises(RateLimitedError) { fixture.locks.acquire(KEY, ttl: 30, wait: 10) }
    assert_equal [40, 0.0, [POST]], [error.retry_after, fixture.clock.now, fixture.sent]
  end

  def test_a_permanent_error_ends_the_wait
    { [401, "invalid_credentials"] => AuthenticationError, [403, "missing_permission"] => PermissionDeniedError,
      [400, "invalid_wait"] => ValidationError, [409, "lock_ownership_lost"] => LockOwnershipLostError }
      .each do |(status, code), kind|
      fixture = Fixture.new([respond(status, code)])
      assert_raises(kind) { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
      assert_equal [POST], fixture.sent
    end
  end

  # LEASE-5: at the third request, the lease granted to the first one is in its margin.
  def test_a_grant_that_expired_before_its_response_is_released_and_the_wait_continues_with_a_new_token
    fixture = Fixture.new([DropAfterSend.new, unavailable(retry_after: "9")])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 10, wait: 100, token: TOKEN) }
    eventually { fixture.clock.next_due.between?(9, 9.9) }
    fixture.clock.advance(9.9)
    lease = waiting.value
    assert_equal [POST, POST, POST, DELETE, POST], fixture.sent
    assert_equal ([TOKEN] * 4) + [lease.token], fixture.network.seen.map(&:token)
    assert fixture.locks.renew(KEY, lease)
  end

  # No earlier request with the new token can have been granted, so another request would not help.
  def test_a_lost_ownership_at_the_first_request_with_a_new_token_ends_the_wait
    fixture = Fixture.new([DropAfterSend.new], otherwise: respond(409, "lock_ownership_lost"))
    assert_raises(LockOwnershipLostError) { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_equal [POST, POST, DELETE, POST], fixture.sent
  end

  def test_a_lost_ownership_at_the_end_of_the_wait_is_raised_after_a_release
    fixture = Fixture.new([DropAfterSend.new, Delay.new(14.5)])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 15, wait: 14.5) }
    eventually { fixture.sent == [POST, POST] }
    fixture.clock.advance(14.5)
    assert_raises(LockOwnershipLostError) { waiting.value }
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  # A server that does not support waiting, or responds at once for another reason.
  def test_a_server_that_does_not_wait_is_asked_with_back_off
    fixture = Fixture.new(otherwise: respond(409, "lock_held"))
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_raises(LockHeldError) { advance_until_over(fixture, waiting) }
    assert_includes 19..60, fixture.sent.length
  end

  def test_closing_the_client_leaves_the_wait_queue
    fixture, rival = fixture_with_rival
    waiting = queued_thread(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.client.close
    error = assert_raises(VolcanoError) { waiting.value }
    assert_equal "this client is closed", error.message
    assert_equal [POST, DELETE], fixture.sent
    assert_equal 0, fixture.server.waiters(KEY)
    fixture.others.release(KEY, rival)
    refute fixture.held?
  end

  def test_closing_the_client_during_a_back_off_leaves_the_wait_queue
    fixture, = fixture_with_rival
    waiting = queued_thread(fixture) { fixture.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    fixture.network.script << unavailable(retry_after: "9")
    fixture.clock.advance(SLICE)
    eventually { fixture.clock.next_due > SLICE + 8 }
    fixture.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { waiting.value }.message)
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  def test_real_time_more_waits_than_request_threads_delay_no_renewal
    fixture, rival = fixture_with_rival
    other = fixture.locks.acquire("other", ttl: 30)
    waits = Array.new(RequestThreads::THREADS_MAX + 6) do
      quiet_thread { fixture.locks.with_lock(KEY, ttl: 30, wait: 600) { 1 } }
    end
    eventually { fixture.server.waiters(KEY) == waits.length }
    assert fixture.locks.renew("other", other)
    fixture.others.release(KEY, rival)
    assert_equal waits.length, waits.sum(&:value)
  end

  def test_an_invalid_wait_is_refused_before_anything_is_sent
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

  def fixture_with_rival(ttl: LONG)
    fixture = Fixture.new
    [fixture, fixture.others.acquire(KEY, ttl: ttl)]
  end

  # A thread that waits in the queue.
  def queued_thread(fixture, &work)
    thread = quiet_thread(&work)
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.settle
    thread
  end

  def bodies(fixture)
    fixture.network.seen.select { |one| one.verb == "POST" }.map { |one| JSON.parse(one.body) }
  end

  # Move the clock until the thread ends, and return its value.
  def advance_until_over(fixture, thread)
    while thread.alive?
      assert_operator fixture.clock.now, :<, 400, "the call has not ended"
      fixture.clock.advance(0.1)
      sleep 0.001
    end
    thread.value
  end
end
