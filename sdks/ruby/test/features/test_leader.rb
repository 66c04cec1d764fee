# frozen_string_literal: true

require_relative "../test_helper"

# SDK-13: campaigning and leading.
class TestLeader < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @terms = Queue.new
  end

  def test_a_block_that_returns_or_breaks_ends_the_campaign_and_releases
    assert_equal(:done, @fixture.locks.lead(KEY, ttl: 30) { :done })
    assert_equal [POST, DELETE], @fixture.sent
    assert_equal(:left, @fixture.locks.lead(KEY, ttl: 30) { break :left })
    refute @fixture.held?
  end

  def test_a_block_that_returns_after_a_loss_leads_to_another_campaign
    result = @fixture.locks.lead(KEY, ttl: 30) do |guard|
      @terms << guard
      @fixture.clock.jump(31) if @terms.length == 1
      @terms.length
    end
    assert_equal 2, result
    # A loss that only the release finds.
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

  def test_the_blocks_error_is_raised_even_if_it_is_a_lock_error
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

  def test_stop_ends_a_campaign_and_leaves_the_wait_queue
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

  def test_stop_ends_a_back_off
    @fixture.network.otherwise = respond(429, "lock_rate_limited", headers: { "retry-after" => "60" })
    stop = false
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 30, stop: -> { stop }) { flunk } }
    eventually { @fixture.sent == [POST] }
    @fixture.clock.advance(1)
    stop = true
    @fixture.clock.advance(0.4)
    assert_nil leading.value
  end

  def test_stop_is_not_polled_while_the_block_runs_and_prevents_the_next_campaign
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

  # SDK-11, LEASE-5: at the third request, the lease granted to the first is in its margin.
  def test_a_grant_that_expired_before_its_response_does_not_end_the_campaign
    @fixture.network.script << DropAfterSend.new << unavailable(retry_after: "9")
    leading = quiet_thread { @fixture.locks.lead(KEY, ttl: 10) { |guard| guard.lease.token } }
    eventually { @fixture.clock.next_due.between?(9, 9.9) }
    @fixture.clock.advance(9.9)
    token = leading.value
    assert_equal [POST, POST, POST, DELETE, POST, DELETE], @fixture.sent
    assert_equal(([false] * 4) + ([true] * 2), @fixture.network.seen.map { |one| one.token == token })
  end

  # SDK-11: no earlier request can have been granted, so another request would not help.
  def test_a_lost_ownership_at_the_first_request_ends_the_campaign
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

  def test_a_permanent_error_is_raised
    @fixture.network.script << respond(401, "invalid_credentials")
    assert_raises(AuthenticationError) { @fixture.locks.lead(KEY, ttl: 30) { flunk } }
  end

  def test_invalid_arguments_are_refused_before_anything_is_sent
    assert_raises(ArgumentError) { @fixture.locks.lead("/", ttl: 30, stop: -> { true }) { flunk } }
    assert_raises(ArgumentError) { @fixture.locks.lead(KEY, ttl: 4, stop: -> { true }) { flunk } }
    error = assert_raises(TypeError) { Leader.new(true) { flunk } }
    assert_match(/stop must respond to call/, error.message)
    assert_empty @fixture.network.seen
  end
end
