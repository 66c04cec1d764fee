# frozen_string_literal: true

require_relative "test_helper"

class TestVerbs < Minitest::Test
  include Kit

  UUID = /\A\h{8}-\h{4}-4\h{3}-[89ab]\h{3}-\h{12}\z/

  def test_the_wire
    stage = Stage.new
    lease = stage.locks.acquire("a:b", ttl: 30)
    renewed = stage.locks.renew("a:b", lease, ttl: 60)
    stage.locks.get("a:b")
    stage.locks.release("a:b", renewed)
    stage.locks.force_release("a:b")
    assert_equal([%w[POST /locks/a:b/lease {"ttl_seconds":30}], %w[PATCH /locks/a:b/lease {"ttl_seconds":60}],
                  ["GET", "/locks/a:b", nil], ["DELETE", "/locks/a:b/lease", nil], ["DELETE", "/locks/a:b", nil]],
                 stage.network.seen.map { |one| [one.verb, one.path, one.body] })
    assert_equal [lease.token, lease.token, nil, lease.token, nil], stage.network.seen.map(&:token)
    stage.network.seen.each do |request|
      assert_match UUID, request.request_id
      assert_equal ["Bearer sk-secret", "application/json", "identity", "volcano-locks-ruby/0.1.0"],
                   request.headers.values_at("Authorization", "Accept", "Accept-Encoding", "User-Agent")
    end
    assert_equal 5, stage.network.seen.map(&:request_id).uniq.length
  end

  # SDK-1, SDK-2, case 13
  def test_an_acquire_whose_answer_is_lost_is_sent_again_with_the_same_ids
    stage = Stage.new([DropAfterSend.new])
    lease = stage.locks.acquire(KEY, ttl: 30)
    assert_equal [POST, POST], stage.sent
    assert_equal 1, stage.network.seen.map { |one| [one.token, one.request_id] }.uniq.length
    assert_equal stage.others.get(KEY).fencing_token, lease.fencing_token
  end

  # SDK-1
  def test_the_caller_may_give_both_ids
    stage = Stage.new
    lease = stage.locks.acquire(KEY, ttl: 30, token: TOKEN, request_id: REQUEST_ID)
    again = stage.locks.acquire(KEY, ttl: 30, token: TOKEN)
    assert_equal lease.fencing_token, again.fencing_token
    assert_equal [TOKEN, REQUEST_ID], [stage.network.seen[0].token, stage.network.seen[0].request_id]
  end

  # SDK-2, case 32
  def test_a_connection_that_breaks_and_a_503_are_worth_one_retry
    [Reset.new, DropBeforeSend.new, unavailable].each do |fault|
      stage = Stage.new([fault])
      stage.locks.acquire(KEY, ttl: 30)
      assert_equal [POST, POST], stage.sent
    end
  end

  # SDK-2
  def test_a_503_is_given_the_time_it_asks_for_within_reason
    { "1" => 1.0, "60" => 2.0, "soon" => 0.5 }.each do |header, seconds|
      stage = Stage.new([unavailable(retry_after: header)])
      stage.locks.acquire(KEY, ttl: 30)
      assert_equal seconds, stage.clock.now
    end
  end

  # SDK-2, SDK-21
  def test_refusals_are_answers
    [[409, "lock_held", LockHeldError], [409, "lock_ownership_lost", LockOwnershipLostError],
     [429, "lock_rate_limited", RateLimitedError], [401, "invalid_credentials", AuthenticationError],
     [400, "invalid_ttl", ValidationError]].each do |status, code, kind|
      stage = Stage.new([answers(status, code)])
      assert_raises(kind) { stage.locks.acquire(KEY, ttl: 30) }
      assert_equal [POST], stage.sent, code
    end
  end

  # SDK-2, case 13
  def test_an_acquire_that_ends_unknown_is_given_back
    [[DropAfterSend.new, DropAfterSend.new], [Takes.new(11), Takes.new(11)], [DropAfterSend.new, unavailable],
     [answers(500, "internal")]].each do |script|
      stage = Stage.new(script.dup)
      error = assert_raises(VolcanoError) { stage.locks.acquire(KEY, ttl: 30) }
      assert_equal ([POST] * script.length) + [DELETE], stage.sent
      assert_equal 1, stage.network.seen.map(&:token).uniq.length
      refute stage.held?
      assert_empty VolcanoLocks.attached_errors(error)
    end
  end

  # SDK-2
  def test_what_never_left_is_not_given_back
    stage = Stage.new([DropBeforeSend.new, DropBeforeSend.new])
    assert_raises(TransportError) { stage.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST], stage.sent
  end

  # SDK-2: an answer that the first send may have produced is no excuse to forget the first send
  def test_a_first_send_that_may_have_been_served_is_given_back_whatever_the_second_says
    stage = Stage.new([DropAfterSend.new, answers(429, "lock_rate_limited")])
    assert_raises(RateLimitedError) { stage.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, POST, DELETE], stage.sent
    refute stage.held?
  end

  # SDK-18, case 50: an interrupt is no failure that the caller asks again after
  def test_real_time_an_interrupted_acquire_with_the_callers_token_is_released
    stage = Stage.new([Hang.new])
    asking = quiet_thread { stage.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    eventually { stage.held? }
    asking.raise(BodyError)
    assert_raises(BodyError) { asking.value }
    assert_equal [POST, DELETE], stage.sent
    refute stage.held?
  end

  # SDK-18: `wait: 0` asks once, as no `wait` does
  def test_an_acquire_with_the_callers_token_is_recovered_whatever_its_spelling
    stage = Stage.new([DropAfterSend.new, DropAfterSend.new])
    assert_raises(TransportError) { stage.locks.acquire(KEY, ttl: 30, wait: 0, token: TOKEN) }
    held = stage.others.get(KEY)
    lease = stage.locks.acquire(KEY, ttl: 30, token: TOKEN.upcase)
    assert_equal [held.fencing_token, [POST] * 3], [lease.fencing_token, stage.sent]
    stage.locks.release(KEY, lease)
    refute stage.held?
  end

  # SDK-2
  def test_a_give_up_that_fails_too_is_attached
    stage = Stage.new(otherwise: Reset.new)
    error = assert_raises(TransportError) { stage.locks.acquire(KEY, ttl: 30) }
    assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
    assert_equal [POST, POST, DELETE], stage.sent
  end

  # case 14
  def test_a_lease_that_is_over_when_its_answer_comes_is_given_back
    stage = Stage.new([Takes.new(6)], timeout: 60)
    assert_raises(TransportError) { stage.locks.acquire(KEY, ttl: 5) }
    assert_equal [POST, DELETE], stage.sent
    refute stage.held?
  end

  # case 14: suspended between the answer's last byte and the look at the clock
  def test_a_grant_is_not_believed_after_its_time
    server = Stage.new
    clock = server.clock
    served = false
    server.network.define_singleton_method(:call) { |request| super(request).tap { served = true } }
    # The first look after the answer, at when it came, is still in time.
    looks = 0
    clock.define_singleton_method(:now) { served && (looks += 1) > 1 ? 31.0 : 0.0 }
    error = assert_raises(LateAnswerError) { server.locks.acquire(KEY, ttl: 30) }
    assert_equal [POST, DELETE], server.sent, "given back, and not tried again"
    assert_match(/run out/, error.message)
  end

  def test_an_error_tells_where_it_was_asked
    error = assert_raises(TransportError) { Stage.new(otherwise: DropBeforeSend.new).locks.get(KEY) }
    assert_includes error.backtrace.join("\n"), __FILE__
  end

  # SDK-4: counted from before the request was sent
  def test_the_deadline_is_counted_from_before_the_request
    stage = Stage.new([Takes.new(4)])
    assert_equal 30.0, stage.locks.acquire(KEY, ttl: 30).deadline
    stage = Stage.new([unavailable, Takes.new(4)])
    assert_equal 31.0, stage.locks.acquire(KEY, ttl: 30).deadline, "of the request that was answered"
  end

  # case 22
  def test_an_old_lease_object_still_releases
    stage = Stage.new
    old = stage.locks.acquire(KEY, ttl: 30)
    newer = stage.locks.renew(KEY, old)
    assert_equal [old.token, old.fencing_token, 30], [newer.token, newer.fencing_token, newer.ttl_seconds]
    stage.locks.release(KEY, old)
    refute stage.held?
  end

  # case 19
  def test_a_release_sent_again_leaves_the_next_lease_alone
    stage = Stage.new
    first = stage.locks.acquire(KEY, ttl: 30)
    stage.network.script << DropAfterSend.new
    stage.locks.release(KEY, first)
    second = stage.locks.acquire(KEY, ttl: 30)
    refute_equal first.token, second.token
    assert_raises(LockOwnershipLostError) { stage.locks.release(KEY, first) }
    assert stage.held?
  end

  # case 19: "not yours" after a lost answer is what success looks like
  def test_a_release_whose_answer_was_lost_and_whose_lock_was_taken_meanwhile_has_succeeded
    stage = Stage.new
    lease = stage.locks.acquire(KEY, ttl: 30)
    stage.network.script << DropAfterSend.new << answers(409, "lock_ownership_lost")
    assert_nil stage.locks.release(KEY, lease)
  end

  def test_a_read_is_tried_again_and_a_force_release_only_if_it_never_left
    stage = Stage.new([Reset.new, Pass.new, DropBeforeSend.new, Pass.new, Reset.new])
    stage.locks.get(KEY)
    stage.locks.force_release(KEY)
    assert_raises(TransportError) { stage.locks.force_release(KEY) }
    assert_equal 5, stage.sent.length
  end

  # SDK-4: a renewal is not waited for beyond its lease
  def test_a_renewal_by_hand_ends_with_its_lease
    stage = Stage.new
    lease = stage.locks.acquire(KEY, ttl: 30)
    stage.clock.jump(25)
    stage.network.script << Takes.new(5)
    assert_raises(TransportError) { stage.locks.renew(KEY, lease) }
    assert_equal [POST, PATCH], stage.sent
  end

  def test_contention_and_loss
    stage = Stage.new
    lease = stage.others.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { stage.locks.acquire(KEY, ttl: 30) }
    stage.locks.force_release(KEY)
    assert_raises(LockOwnershipLostError) { stage.others.renew(KEY, lease) }
    mine = stage.locks.acquire(KEY, ttl: 30)
    assert_operator mine.fencing_token, :>, lease.fencing_token
    assert_raises(LockOwnershipLostError) { stage.others.release(KEY, lease) }
  end

  def test_a_closed_client_says_so
    stage = Stage.new
    lease = stage.locks.acquire(KEY, ttl: 30)
    2.times { stage.client.close }
    error = assert_raises(VolcanoError) { stage.locks.release(KEY, lease) }
    assert_equal "this client is closed", error.message
    assert_equal [POST], stage.sent
    Client.open(api_url: "http://x.invalid", service_key: "sk-x") { |client| assert_kind_of Client, client }
  end
end
