# frozen_string_literal: true

require_relative "../test_helper"

class TestOperations < Minitest::Test
  include TestHelper

  UUID = /\A\h{8}-\h{4}-4\h{3}-[89ab]\h{3}-\h{12}\z/

  def test_the_requests_of_each_operation
    fixture = Fixture.new
    lease = fixture.locks.acquire("a:b", ttl: 30)
    renewed = fixture.locks.renew("a:b", lease, ttl: 60)
    fixture.locks.get("a:b")
    fixture.locks.release("a:b", renewed)
    fixture.locks.force_release("a:b")
    assert_equal([%w[POST /locks/a:b/lease {"ttl_seconds":30}], %w[PATCH /locks/a:b/lease {"ttl_seconds":60}],
                  ["GET", "/locks/a:b", nil], ["DELETE", "/locks/a:b/lease", nil], ["DELETE", "/locks/a:b", nil]],
                 fixture.network.seen.map { |one| [one.verb, one.path, one.body] })
    assert_equal [lease.token, lease.token, nil, lease.token, nil], fixture.network.seen.map(&:token)
    fixture.network.seen.each do |request|
      assert_match UUID, request.request_id
      assert_equal ["Bearer sk-secret", "application/json", "identity", "volcano-locks-ruby/0.1.0"],
                   request.headers.values_at("Authorization", "Accept", "Accept-Encoding", "User-Agent")
    end
    assert_equal 5, fixture.network.seen.map(&:request_id).uniq.length
  end

  # SDK-2
  def test_a_503_is_retried_after_its_retry_after_within_limits
    { "1" => 1.0, "60" => 2.0, "soon" => 0.5 }.each do |header, seconds|
      fixture = Fixture.new([unavailable(retry_after: header)])
      fixture.locks.acquire(KEY, ttl: 30)
      assert_equal seconds, fixture.clock.now
    end
  end

  def test_the_backtrace_of_an_error_shows_the_caller
    error = assert_raises(TransportError) { Fixture.new(otherwise: DropBeforeSend.new).locks.get(KEY) }
    assert_includes error.backtrace.join("\n"), __FILE__
  end

  # SDK-4
  def test_the_deadline_is_counted_from_before_the_request
    fixture = Fixture.new([Takes.new(4)])
    assert_equal 30.0, fixture.locks.acquire(KEY, ttl: 30).deadline
    fixture = Fixture.new([unavailable, Takes.new(4)])
    assert_equal 31.0, fixture.locks.acquire(KEY, ttl: 30).deadline, "it counts from the request that succeeded"
  end

  # case 22
  def test_an_old_lease_object_still_releases
    fixture = Fixture.new
    old = fixture.locks.acquire(KEY, ttl: 30)
    newer = fixture.locks.renew(KEY, old)
    assert_equal [old.token, old.fencing_token, 30], [newer.token, newer.fencing_token, newer.ttl_seconds]
    fixture.locks.release(KEY, old)
    refute fixture.held?
  end

  # case 19
  def test_a_repeated_release_does_not_end_the_next_lease
    fixture = Fixture.new
    first = fixture.locks.acquire(KEY, ttl: 30)
    fixture.network.script << DropAfterSend.new
    fixture.locks.release(KEY, first)
    second = fixture.locks.acquire(KEY, ttl: 30)
    refute_equal first.token, second.token
    assert_raises(LockOwnershipLostError) { fixture.locks.release(KEY, first) }
    assert fixture.held?
  end

  # case 19
  def test_a_release_succeeds_if_its_response_was_lost_and_another_owner_took_the_lock
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    fixture.network.script << DropAfterSend.new << respond(409, "lock_ownership_lost")
    assert_nil fixture.locks.release(KEY, lease)
  end

  def test_a_get_is_retried_and_a_force_release_only_if_it_was_not_sent
    fixture = Fixture.new([Reset.new, Pass.new, DropBeforeSend.new, Pass.new, Reset.new])
    fixture.locks.get(KEY)
    fixture.locks.force_release(KEY)
    assert_raises(TransportError) { fixture.locks.force_release(KEY) }
    assert_equal 5, fixture.sent.length
  end

  # SDK-27
  def test_a_force_release_of_one_lease_is_retried_because_it_can_evict_no_other_holder
    fixture = Fixture.new([Pass.new, Reset.new])
    lease = fixture.locks.acquire(KEY, ttl: 30)
    fixture.locks.force_release(KEY, fencing_token: lease.fencing_token, reason: "hängt: 50 %")
    error = assert_raises(ConflictError) { fixture.locks.force_release(KEY, fencing_token: lease.fencing_token + 1) }
    assert_equal "lock_changed", error.code
    assert_equal 4, fixture.sent.length
    assert_equal ["/locks/#{KEY}/leases/#{lease.fencing_token}", "h%C3%A4ngt%3A%2050%20%25"],
                 [fixture.network.seen[1].path, fixture.network.seen[1].headers["X-Volcano-Reason"]]
  end

  # SDK-4
  def test_a_renewal_times_out_at_the_end_of_its_lease
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    fixture.clock.jump(25)
    fixture.network.script << Takes.new(5)
    assert_raises(TransportError) { fixture.locks.renew(KEY, lease) }
    assert_equal [POST, PATCH], fixture.sent
  end
end
