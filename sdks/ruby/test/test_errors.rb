# frozen_string_literal: true

require_relative "test_helper"

class TestErrors < Minitest::Test
  include TestHelper

  # SDK-9: spec/errors.yaml lists the codes.
  def test_every_code_is_raised_as_its_class
    table = File.read(File.expand_path("../../../spec/errors.yaml", __dir__))
    rows = table.scan(/^(\w+):\n  status: (\d+)/)
    refute_empty rows
    rows.each do |code, status|
      fixture = Fixture.new(otherwise: respond(status.to_i, code))
      error = assert_raises(VolcanoError) { fixture.locks.renew(KEY, lease) }
      assert_equal [status.to_i, code, "message from the server"], [error.status, error.code, error.message]
      assert_instance_of class_for(status.to_i, code), error, code
    end
  end

  # SDK-9
  def test_the_error_classes_form_one_tree
    {
      AuthenticationError => VolcanoError, PermissionDeniedError => AuthenticationError,
      ValidationError => VolcanoError, NotFoundError => VolcanoError,
      ConflictError => VolcanoError, LockHeldError => ConflictError,
      LockOwnershipLostError => ConflictError, RateLimitedError => VolcanoError, ServerError => VolcanoError,
      UnavailableError => ServerError, TransportError => VolcanoError, VolcanoError => StandardError
    }.each { |kind, parent| assert_equal parent, kind.superclass }
  end

  # SDK-9
  def test_an_error_has_status_code_retry_after_and_request_id
    fixture = Fixture.new(otherwise: respond(429, "lock_rate_limited", headers: { "retry-after" => "17" }))
    error = assert_raises(RateLimitedError) { fixture.locks.get(KEY, request_id: REQUEST_ID) }
    assert_equal [429, "lock_rate_limited", 17, REQUEST_ID],
                 [error.status, error.code, error.retry_after, error.request_id]
    assert_instance_of Integer, error.retry_after
  end

  # SDK-9, HTTP-28
  def test_a_lock_held_error_names_the_lease_that_holds_the_lock
    fixture = Fixture.new
    lease = fixture.server.client(holder: "host/1").locks.acquire(KEY, ttl: 30)
    error = assert_raises(LockHeldError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [KEY, "host/1", lease.expires_at, lease.fencing_token, 409],
                 [error.key, error.holder, error.expires_at, error.fencing_token, error.status]
    assert_equal "the lock \"nightly\" is held by host/1 until 2026-01-01T00:00:30.000Z unless it is renewed " \
                 "(fencing token #{lease.fencing_token}): try again later, or pass wait", error.message
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 5) }
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.advance(5)
    assert_equal "host/1", assert_raises(LockHeldError) { waiting.value }.holder
  end

  # SDK-9
  def test_a_malformed_field_of_the_holders_lease_is_unknown
    [{}, { holder: 7, expires_at: "soon", fencing_token: 2**53 }, { holder: nil, expires_at: nil, fencing_token: nil },
     { holder: "a b", expires_at: 5, fencing_token: "1" }, { holder: "a" * 129 }].each do |fields|
      fixture = Fixture.new([Respond.new(409, JSON.generate({ error: "x", code: "lock_held", **fields }))])
      error = assert_raises(LockHeldError) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal [KEY, nil, nil, nil], [error.key, error.holder, error.expires_at, error.fencing_token]
      assert_equal 'the lock "nightly" is held by another owner: try again later, or pass wait', error.message
    end
  end

  def test_other_statuses_have_the_class_of_their_family
    { 418 => VolcanoError, 404 => NotFoundError, 413 => ValidationError, 502 => ServerError, 302 => ServerError,
      409 => ConflictError }.each do |status, kind|
      fixture = Fixture.new(otherwise: Respond.new(status, "<html>",
                                                   { "retry-after" => "Wed, 21 Oct 2026 07:28:00 GMT" }))
      error = assert_raises(VolcanoError) { fixture.locks.get(KEY) }
      assert_instance_of kind, error
      assert_equal [nil, nil], [error.code, error.retry_after]
    end
  end

  def test_a_proxys_message_is_truncated_and_printable
    body = JSON.generate({ error: "a\u0000b#{'c' * 1000}", code: 5 })
    error = assert_raises(ServerError) { Fixture.new(otherwise: Respond.new(500, body)).locks.get(KEY) }
    assert_match(/\Aa\?bc{297}\z/, error.message)
  end

  private

  def lease
    Lease.new(key: KEY, token: TOKEN, ttl_seconds: 30, expires_at: Time.now.utc, fencing_token: 1)
  end

  def class_for(status, code)
    conflicts = { "lock_held" => LockHeldError, "lock_ownership_lost" => LockOwnershipLostError }
    return conflicts.fetch(code, ConflictError) if status == 409
    return ServerError if code == "lock_record_damaged"

    { 400 => ValidationError, 401 => AuthenticationError, 403 => PermissionDeniedError, 404 => NotFoundError,
      413 => ValidationError, 429 => RateLimitedError, 500 => ServerError, 503 => UnavailableError }
      .fetch(status, VolcanoError)
  end
end
