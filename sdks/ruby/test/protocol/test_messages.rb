# frozen_string_literal: true

require_relative "../test_helper"

class TestMessages < Minitest::Test
  include TestHelper

  # case 35, SDK-7
  def test_dates_of_every_form_are_parsed
    {
      "2026-07-20T14:00:10Z" => 0, "2026-07-20T14:00:10.1Z" => 100_000_000, "2026-07-20T14:00:10.123Z" => 123_000_000,
      "2026-07-20T14:00:10.123456Z" => 123_456_000, "2026-07-20T14:00:10.123456789Z" => 123_456_789,
      "2026-07-20T14:00:10+00:00" => 0, "2026-07-20T16:30:10.5+02:30" => 500_000_000, "2026-07-20t14:00:10z" => 0,
      "2026-07-20 09:00:10.000-0500" => 0
    }.each do |text, nanoseconds|
      time = Messages.parse_date(text)
      assert_equal [Time.utc(2026, 7, 20, 14, 0, 10).to_i, nanoseconds], [time.to_i, time.nsec], text
      assert time.utc?, text
    end
  end

  # case 35
  def test_an_invalid_date_is_refused
    ["", "now", "2026-07-20T14:00:10", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "2026-07-20T24:00:00Z",
     "2026-07-20T14:00:60Z", "2026-07-20T14:00:10+25:00", "2026-07-20T14:00:10.1234567890Z", "x2026-07-20T14:00:10Z",
     "2026-07-20T14:00:10Z\n", "\xff"].each do |text|
      assert_raises(ArgumentError, text) { Messages.parse_date(text) }
    end
    assert_raises(TypeError) { Messages.parse_date(5) }
  end

  def test_a_response_that_is_not_of_a_lock_service_is_never_a_grant
    ["", "<html>", "[]", "null", "{}", "\xff", '{"expires_at":"soon","fencing_token":1}',
     '{"expires_at":null,"fencing_token":1}', '{"fencing_token":1}', "[" * 5000].each do |body|
      fixture = Fixture.new([Respond.new(201, body, { "content-type" => "text/html" })])
      error = assert_raises(ServerError, body) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal [201, nil], [error.status, error.code]
      refute_nil error.request_id
      assert_equal [POST, DELETE], fixture.sent, "it may have been granted, so it is released"
    end
  end

  def test_a_get_requires_a_boolean_held
    fixture = Fixture.new([Respond.new(200, '{"held":"yes"}'), Respond.new(200, '{"held":true}')])
    2.times { assert_raises(ServerError) { fixture.locks.get(KEY) } }
    assert_equal LockState.new(held: false), fixture.locks.get(KEY)
    lease = fixture.locks.acquire(KEY, ttl: 30)
    state = fixture.locks.get(KEY)
    assert_equal [true, lease.expires_at, lease.fencing_token], [state.held?, state.expires_at, state.fencing_token]
    assert_predicate state, :frozen?
  end
end
