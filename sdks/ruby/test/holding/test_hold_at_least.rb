# frozen_string_literal: true

require_relative "../test_helper"

# SDK-12: the minimum holding time of a block.
class TestHoldAtLeast < Minitest::Test
  include TestHelper

  def test_the_last_renewal_is_for_the_remaining_time_in_whole_seconds_and_at_least_the_shortest_ttl
    { 20.5 => 40, 59 => 5, 0.1 + 0.2 => 60 }.each do |seconds, rest|
      fixture = Fixture.new
      fixture.locks.with_lock(KEY, ttl: 3_600, hold_at_least: 60) { fixture.clock.jump(seconds) }
      assert_equal JSON.generate({ ttl_seconds: rest }), fixture.network.seen.last.body
    end
  end

  def test_the_time_counts_from_the_start_of_the_block_and_not_from_the_request
    fixture = Fixture.new
    rival = fixture.others.acquire(KEY, ttl: 600)
    working = quiet_thread { fixture.locks.with_lock(KEY, ttl: 600, wait: 200, hold_at_least: 60) { 1 } }
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.advance(100)
    fixture.others.release(KEY, rival)
    assert_equal 1, working.value
    assert_equal [PATCH, '{"ttl_seconds":60}'], [fixture.sent.last, fixture.network.seen.last.body]
  end

  def test_an_unconfirmed_last_renewal_is_logged_and_leaves_the_lease_as_it_was
    fixture = Fixture.new
    guard = nil
    warnings = collect_warnings do
      fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do |given|
        guard = given
        fixture.network.otherwise = Reset.new
      end
    end
    assert_kind_of TransportError, guard.release_error
    assert_match(/hold_at_least/, warnings.join)
    assert_equal [POST, PATCH, PATCH], fixture.sent
    assert fixture.held?
  end

  def test_a_loss_that_only_the_last_renewal_finds_is_raised
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { fixture.others.force_release(KEY) }
    end
    assert_equal 409, error.status
  end

  # A renewal that lands after the last one would shorten the lease.
  def test_real_time_a_renewal_in_progress_finishes_before_the_last_one
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

  def test_an_invalid_time_is_refused_before_anything_is_sent
    fixture = Fixture.new
    [-1, Float::INFINITY, 7_776_001].each do |seconds|
      error = assert_raises(ArgumentError) { fixture.locks.with_lock(KEY, ttl: 30, hold_at_least: seconds) { flunk } }
      assert_match(/hold_at_least must be from 0 to 7776000 seconds/, error.message)
    end
    assert_empty fixture.network.seen
  end
end
