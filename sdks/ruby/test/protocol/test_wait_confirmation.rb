# frozen_string_literal: true

require_relative "../test_helper"

# SDK-11, SDK-4: the client does not know when a lease granted after a wait began.
class TestWaitConfirmation < Minitest::Test
  include TestHelper

  def test_the_deadline_of_a_late_grant_counts_from_the_renewal_that_confirms_it
    [10.1, 24, 34].each do |seconds|
      fixture = Fixture.new([Delay.new(seconds)])
      waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { fixture.sent == [POST] }
      fixture.clock.advance(seconds)
      assert_equal seconds + 30, waiting.value.deadline
      assert_equal [POST, PATCH], fixture.sent
    end
  end

  def test_a_failed_confirmation_backs_off_by_its_retry_after
    quota = respond(429, "lock_rate_limited", headers: { "retry-after" => "40" })
    fixture = Fixture.new([Takes.new(20), quota])
    waiting = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, wait: 100) }
    eventually { fixture.sent == [POST, PATCH, DELETE] && fixture.clock.next_due.between?(60, 64) }
    fixture.clock.advance(44)
    assert waiting.value
  end

  def test_a_failed_confirmation_at_the_end_of_the_wait_is_raised_after_a_release
    fixture = Fixture.new([Takes.new(20), respond(401, "invalid_credentials")])
    error = assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30, wait: 20) }
    assert_match(/could not be confirmed/, error.message)
    assert_equal [POST, PATCH, DELETE], fixture.sent
    refute fixture.held?
  end
end
