# frozen_string_literal: true

require_relative "test_helper"

class TestVerbs < Minitest::Test
  include TestHelper

  UUID = /\A\h{8}-\h{4}-4\h{3}-[89ab]\h{3}-\h{12}\z/

  def test_the_wire
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

  # SDK-1, SDK-2, case 13
  def test_an_acquire_whose_answer_is_lost_is_sent_again_with_the_same_ids
    fixture = Fixture.new([DropAfterSend.new])
    lease = fixture.locks.acquire(KEY, ttl: 30)
    assert_equal [POST, POST], fixture.sent
    assert_equal 1, fixture.network.seen.map { |one| [one.token, one.request_id] }.uniq.length
    assert_equal fixture.others.get(KEY).fencing_token, lease.fencing_token
  end

  # SDK-1
  def test_the_caller_may_give_both_ids
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN, request_id: REQUEST_ID)
    again = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN)
    assert_equal lease.fencing_token, again.fencing_token
    assert_equal [TOKEN, REQUEST_ID], [fixture.network.seen[0].token, fixture.network.seen[0].request_id]
  end

  # SDK-2, case 32
  def test_a_connection_that_breaks_and_a_503_are_worth_one_retry
    [Reset.new, DropBeforeSend.new, unavailable].each do |fault|
      fixture = Fixture.new([fault])
      fixture.locks.acquire(KEY, ttl: 30)
      assert_equal [POST, POST], fixture.sent
    end
  end

  # SDK-2
  def test_a_503_is_given_the_time_it_asks_for_within_reason
    { "1" => 1.0, "60" => 2.0, "soon" => 0.5 }.each do |header, seconds|
      fixture = Fixture.new([unavailable(retry_after: header)])
      fixture.locks.acquire(KEY, ttl: 30)
      assert_equal seconds, fixture.clock.now
    end
  end

  # SDK-2, SDK-21
  def test_refusals_are_answers
    [[409, "lock_held", LockHeldError], [409, "lock_ownership_lost", LockOwnershipLostError],
     [429, "lock_rate_limited", RateLimitedError], [401, "invalid_credentials", AuthenticationError],
     [400, "invalid_ttl", ValidationError]].each do |status, code, kind|
      fixture = Fixture.new([respond(status, code)])
      assert_raises(kind) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal [POST], fixture.sent, code
    end
  end

  # SDK-2, case 13
  def test_an_acquire_that_ends_unknown_is_given_back
    [[DropAfterSend.new, DropAfterSend.new], [Takes.new(11), Takes.new(11)], [DropAfterSend.new, unavailable],
     [respond(500, "internal")]].each do |script|
      fixture = Fixture.new(script.dup)
      error = assert_raises(VolcanoError) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal ([POST] * script.length) + [DELETE], fixture.sent
      assert_equal 1, fixture.network.seen.map(&:token).uniq.length
      refute fixture.held?
      assert_empty VolcanoLocks.attached_errors(error)
    end
  end

  # SDK-2
  def test_what_never_left_is_not_given_back
    fixture = Fixture.new([DropBeforeSend.new, DropBeforeSend.new])
    assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST], fixture.sent
  end

  # SDK-2: an answer that the first send may have produced is no excuse to forget the first send
  def test_a_first_send_that_may_have_been_served_is_given_back_whatever_the_second_says
    fixture = Fixture.new([DropAfterSend.new, respond(429, "lock_rate_limited")])
    assert_raises(RateLimitedError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # SDK-18, case 50: an interrupt is no failure that the caller asks again after
  def test_real_time_an_interrupted_acquire_with_the_callers_token_is_released
    fixture = Fixture.new([Hang.new])
    asking = quiet_thread { fixture.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    eventually { fixture.held? }
    asking.raise(BodyError)
    assert_raises(BodyError) { asking.value }
    assert_equal [POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # SDK-18: `wait: 0` asks once, as no `wait` does
  def test_an_acquire_with_the_callers_token_is_recovered_whatever_its_spelling
    fixture = Fixture.new([DropAfterSend.new, DropAfterSend.new])
    assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30, wait: 0, token: TOKEN) }
    held = fixture.others.get(KEY)
    lease = fixture.locks.acquire(KEY, ttl: 30, token: TOKEN.upcase)
    assert_equal [held.fencing_token, [POST] * 3], [lease.fencing_token, fixture.sent]
    fixture.locks.release(KEY, lease)
    refute fixture.held?
  end

  # SDK-2
  def test_a_give_up_that_fails_too_is_attached
    fixture = Fixture.new(otherwise: Reset.new)
    error = assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 30) }
    assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
    assert_equal [POST, POST, DELETE], fixture.sent
  end

  # case 14
  def test_a_lease_that_is_over_when_its_answer_comes_is_given_back
    fixture = Fixture.new([Takes.new(6)], timeout: 60)
    assert_raises(TransportError) { fixture.locks.acquire(KEY, ttl: 5) }
    assert_equal [POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # case 14: suspended between the answer's last byte and the look at the clock
  def test_a_grant_is_not_believed_after_its_time
    server = Fixture.new
    clock = server.clock
    served = false
    server.network.define_singleton_method(:call) { |request| super(request).tap { served = true } }
    # The first look after the answer, at when it came, is still in time.
    looks = 0
    clock.define_singleton_method(:now) { served && (looks += 1) > 1 ? 31.0 : 0.0 }
    error = assert_raises(LateResponseError) { server.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, DELETE], server.sent, "given back, and not tried again"
    assert_match(/expired/, error.message)
  end

  def test_an_error_tells_where_it_was_asked
    error = assert_raises(TransportError) { Fixture.new(otherwise: DropBeforeSend.new).locks.get(KEY) }
    assert_includes error.backtrace.join("\n"), __FILE__
  end

  # SDK-4: counted from before the request was sent
  def test_the_deadline_is_counted_from_before_the_request
    fixture = Fixture.new([Takes.new(4)])
    assert_equal 30.0, fixture.locks.acquire(KEY, ttl: 30).deadline
    fixture = Fixture.new([unavailable, Takes.new(4)])
    assert_equal 31.0, fixture.locks.acquire(KEY, ttl: 30).deadline, "of the request that was answered"
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
  def test_a_release_sent_again_leaves_the_next_lease_alone
    fixture = Fixture.new
    first = fixture.locks.acquire(KEY, ttl: 30)
    fixture.network.script << DropAfterSend.new
    fixture.locks.release(KEY, first)
    second = fixture.locks.acquire(KEY, ttl: 30)
    refute_equal first.token, second.token
    assert_raises(LockOwnershipLostError) { fixture.locks.release(KEY, first) }
    assert fixture.held?
  end

  # case 19: "not yours" after a lost answer is what success looks like
  def test_a_release_whose_answer_was_lost_and_whose_lock_was_taken_meanwhile_has_succeeded
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    fixture.network.script << DropAfterSend.new << respond(409, "lock_ownership_lost")
    assert_nil fixture.locks.release(KEY, lease)
  end

  def test_a_read_is_tried_again_and_a_force_release_only_if_it_never_left
    fixture = Fixture.new([Reset.new, Pass.new, DropBeforeSend.new, Pass.new, Reset.new])
    fixture.locks.get(KEY)
    fixture.locks.force_release(KEY)
    assert_raises(TransportError) { fixture.locks.force_release(KEY) }
    assert_equal 5, fixture.sent.length
  end

  # SDK-4: a renewal is not waited for beyond its lease
  def test_a_renewal_by_hand_ends_with_its_lease
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    fixture.clock.jump(25)
    fixture.network.script << Takes.new(5)
    assert_raises(TransportError) { fixture.locks.renew(KEY, lease) }
    assert_equal [POST, PATCH], fixture.sent
  end

  def test_contention_and_loss
    fixture = Fixture.new
    lease = fixture.others.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { fixture.locks.acquire(KEY, ttl: 30) }
    fixture.locks.force_release(KEY)
    assert_raises(LockOwnershipLostError) { fixture.others.renew(KEY, lease) }
    mine = fixture.locks.acquire(KEY, ttl: 30)
    assert_operator mine.fencing_token, :>, lease.fencing_token
    assert_raises(LockOwnershipLostError) { fixture.others.release(KEY, lease) }
  end

  def test_a_closed_client_says_so
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    2.times { fixture.client.close }
    error = assert_raises(VolcanoError) { fixture.locks.release(KEY, lease) }
    assert_equal "this client is closed", error.message
    assert_equal [POST], fixture.sent
    Client.open(api_url: "http://x.invalid", service_key: "sk-x") { |client| assert_kind_of Client, client }
  end
end
