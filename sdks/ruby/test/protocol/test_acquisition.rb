# frozen_string_literal: true

require_relative "../test_helper"

class TestAcquisition < Minitest::Test
  include TestHelper

  # SDK-1
  def test_the_callers_ids_are_sent
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN, request_id: REQUEST_ID)
    again = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN)
    assert_equal lease.fencing_token, again.fencing_token
    assert_equal [TOKEN, REQUEST_ID], [fixture.network.seen[0].token, fixture.network.seen[0].request_id]
  end

  # SDK-2, SDK-21
  def test_a_refusal_is_not_retried
    [[409, "lock_held", LockHeldError], [409, "lock_ownership_lost", LockOwnershipLostError],
     [429, "lock_rate_limited", RateLimitedError], [401, "invalid_credentials", AuthenticationError],
     [400, "invalid_ttl", ValidationError]].each do |status, code, kind|
      fixture = Fixture.new([respond(status, code)])
      assert_raises(kind) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal [POST], fixture.sent, code
    end
  end

  # SDK-2
  def test_an_acquire_that_found_no_server_twice_is_not_released
    fixture = Fixture.new([DropBeforeSend.new, DropBeforeSend.new])
    assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST], fixture.sent
  end

  # SDK-2, case 13
  def test_a_first_request_that_may_have_been_granted_is_released_whatever_the_second_returns
    fixture = Fixture.new([DropAfterSend.new, respond(429, "lock_rate_limited")])
    assert_raises(RateLimitedError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # SDK-18, case 50: a caller does not retry after an interrupt
  def test_real_time_an_interrupted_acquire_with_the_callers_token_is_released
    fixture = Fixture.new([Hang.new])
    asking = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    eventually { fixture.held? }
    asking.raise(BodyError)
    assert_raises(BodyError) { asking.value }
    assert_equal [POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # SDK-18: `wait: 0` is the same as no `wait`
  def test_the_callers_token_in_another_spelling_recovers_the_acquire
    fixture = Fixture.new([DropAfterSend.new, DropAfterSend.new])
    assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30, wait: 0, token: TOKEN) }
    held = fixture.others.get(KEY)
    lease = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN.upcase)
    assert_equal [held.fencing_token, [POST] * 3], [lease.fencing_token, fixture.sent]
    fixture.locks.release(KEY, lease)
    refute fixture.held?
  end

  # SDK-18, case 50
  def test_the_error_of_an_uncertain_acquire_says_how_to_recover
    fixture = Fixture.new([DropAfterSend.new, unavailable])
    error = assert_raises(UnavailableError) { fixture.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    assert_match(/\Amessage from the server\. The lock may be held for you: .*same token and request_id/, error.message)
    assert_equal [503, "lock_service_unavailable", 1], [error.status, error.code, error.retry_after]
    assert_includes error.backtrace.join("\n"), __FILE__
    refute_includes error.full_message, TOKEN
    { [DropAfterSend.new, DropAfterSend.new] => {}, [DropBeforeSend.new, DropBeforeSend.new] => { token: TOKEN },
      [respond(429, "lock_rate_limited")] => { token: TOKEN } }.each do |script, ids|
      error = assert_raises(VolcanoError) { Fixture.new(script).locks.acquire(KEY, ttl: 30, **ids) }
      refute_match(/recover/, error.message, "released, or certainly not served")
    end
  end

  # SDK-2, SDK-11, case 63: no retry cures it
  def test_a_damaged_record_ends_an_acquire_at_once
    [0, 60].each do |wait|
      fixture = Fixture.new(otherwise: respond(503, "lock_record_damaged"))
      error = assert_raises(ServerError) { fixture.locks.acquire(KEY, ttl: 30, wait: wait) }
      assert_equal [ServerError, "lock_record_damaged", 1], [error.class, error.code, fixture.sent.count(POST)]
    end
  end

  # SDK-2
  def test_a_failed_release_is_attached_to_the_error_of_the_acquire
    fixture = Fixture.new(otherwise: Reset.new)
    error = assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  # case 14: suspended between the response and the check of the deadline
  def test_a_grant_that_expired_before_the_check_is_released
    server = Fixture.new
    clock = server.clock
    served = false
    server.network.define_singleton_method(:call) { |request| super(request).tap { served = true } }
    # The first reading after the response, for its arrival, is still in time.
    readings = 0
    clock.define_singleton_method(:now) { served && (readings += 1) > 1 ? 31.0 : 0.0 }
    error = assert_raises(LateResponseError) { server.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, DELETE], server.sent, "released, and not retried"
    assert_match(/expired/, error.message)
  end
end
