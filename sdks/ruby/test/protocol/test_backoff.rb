# frozen_string_literal: true

require_relative "../test_helper"

# SDK-11: the delay between two requests.
class TestBackoff < Minitest::Test
  include TestHelper

  def test_delays_grow_to_a_limit_with_jitter_and_start_again_after_a_success
    firsts = Array.new(20) { Backoff.new.seconds_after(server_error) }
    assert_operator firsts.uniq.length, :>, 10, "clients that fail at the same time do not return at the same time"
    firsts.each { |first| assert_includes Backoff::DELAY_SECONDS_MIN..(2 * Backoff::DELAY_SECONDS_MIN), first }
    backoff = Backoff.new
    later = Array.new(40) { backoff.seconds_after(server_error) }
    later.each { |rest| assert_includes Backoff::DELAY_SECONDS_MIN..Backoff::DELAY_SECONDS_MAX, rest }
    assert_operator later.max, :>, 2 * Backoff::DELAY_SECONDS_MIN
    backoff.reset
    assert_includes Backoff::DELAY_SECONDS_MIN..(2 * Backoff::DELAY_SECONDS_MIN), backoff.seconds_after(server_error)
  end

  def test_a_retry_after_is_extended_by_up_to_a_tenth
    rate_limited = RateLimitedError.new("quota used up", status: 429, retry_after: 30)
    unconfirmed = AcquireWait.const_get(:UnconfirmedError).new("unconfirmed", retry_after: 30, request_id: nil)
    [rate_limited, unconfirmed].each do |failure|
      20.times { assert_includes 30.0..33.0, Backoff.new.seconds_after(failure) }
    end
  end

  def test_the_first_missing_response_is_retried_at_once
    backoff = Backoff.new
    assert_equal 0.0, backoff.seconds_after(TransportError.new("broken"))
    assert_operator backoff.seconds_after(TransportError.new("broken")), :>=, Backoff::DELAY_SECONDS_MIN
  end

  private

  def server_error
    ServerError.new("internal", status: 500)
  end
end
