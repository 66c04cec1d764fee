# frozen_string_literal: true

require_relative "test_helper"

# SDK-11: waiting for a lock, under a clock that the test moves.
class TestWaiting < Minitest::Test
  include Kit

  LONG = 7_776_000
  SLICE = Wait::WAIT_SLICE_SECONDS

  def test_it_is_granted_the_moment_it_is_released_with_one_request
    stage, rival = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: 20) }
    stage.clock.advance(3)
    stage.others.release(KEY, rival)
    assert_operator waiting.value.fencing_token, :>, rival.fencing_token
    assert_equal [[POST], [{ "ttl_seconds" => 30, "wait_seconds" => 20.0 }]], [stage.sent, bodies(stage)]
  end

  def test_without_contention_it_costs_what_it_costs_without_waiting
    stage = Stage.new
    stage.locks.acquire(KEY, ttl: 30, wait: 20)
    assert_equal [POST], stage.sent
  end

  def test_without_a_wait_no_such_field_is_sent
    stage, = held_by_a_rival
    [nil, 0, 0.0].each { |wait| assert_raises(LockHeldError) { stage.locks.acquire(KEY, ttl: 30, wait: wait) } }
    assert_equal [{ "ttl_seconds" => 30 }] * 3, bodies(stage)
  end

  def test_it_asks_slice_by_slice_with_the_same_ids_and_ends_in_contention
    stage, = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: 110) }
    stage.clock.advance(110)
    assert_raises(LockHeldError) { waiting.value }
    assert_equal([SLICE, SLICE, 10.0], bodies(stage).map { |body| body["wait_seconds"] })
    assert_equal([60.0, 60.0, 20.0], stage.network.seen.map(&:timeout_seconds))
    assert_equal 1, stage.network.seen.map { |one| [one.token, one.request_id] }.uniq.length
    assert_equal [POST] * 3, stage.sent, "the place is not kept for long, and nothing is held"
  end

  def test_it_waits_for_ever_if_it_is_to
    stage, rival = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    stage.clock.advance(3_600)
    stage.others.release(KEY, rival)
    assert_equal 30, waiting.value.ttl_seconds
    assert_equal (3_600 / SLICE) + 1, stage.sent.length
  end

  def test_it_keeps_its_turn_from_one_request_to_the_next
    stage, rival = held_by_a_rival
    order = Queue.new
    mine = waiter(stage) { stage.locks.with_lock(KEY, ttl: 30, wait: 600) { order << :mine } }
    theirs = quiet_thread { stage.others.with_lock(KEY, ttl: 30, wait: 600) { order << :theirs } }
    eventually { stage.server.waiters(KEY) == 2 }
    stage.clock.advance((SLICE * 3) + 0.5)
    stage.others.release(KEY, rival)
    [mine, theirs].each(&:value)
    assert_equal(%i[mine theirs], Array.new(2) { order.pop })
  end

  def test_it_takes_over_from_a_holder_that_died
    stage, = held_by_a_rival(ttl: 10)
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 60, wait: 20) && stage.clock.now }
    stage.clock.advance(20)
    assert_equal 11.0, waiting.value
  end

  def test_it_rides_out_failures_with_the_same_token_and_rests_between
    [DropBeforeSend.new, DropAfterSend.new, Reset.new, Hang.new, unavailable, answers(429, "lock_rate_limited"),
     answers(500, "internal"), Answers.new(502, "<html>")].each do |fault|
      stage = Stage.new([fault] * 3)
      waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 300, token: TOKEN) }
      lease = moved_until(stage, waiting)
      assert_equal TOKEN, lease.token
      assert_equal [POST] * 4, stage.sent.reject { |one| one == PATCH }, fault.inspect
      assert_operator stage.clock.now, :>, 0.2, fault.inspect
    end
  end

  def test_it_goes_on_over_a_restart_of_the_server
    stage, rival = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    stage.clock.advance(5)
    stage.server.restart
    stage.clock.advance(5)
    stage.others.release(KEY, rival)
    assert waiting.value
  end

  def test_a_retry_after_is_kept_and_one_beyond_the_wait_ends_it_at_once
    quota = -> { answers(429, "lock_rate_limited", headers: { "retry-after" => "40" }) }
    stage = Stage.new([quota.call])
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 100) }
    eventually { stage.clock.next_due.between?(40, 44.1) }
    stage.clock.advance(39.9)
    assert_equal [POST], stage.sent
    stage.clock.advance(5)
    assert waiting.value
    stage.network.script << quota.call
    error = assert_raises(RateLimitedError) { stage.locks.acquire("other", ttl: 30, wait: 10) }
    assert_equal 40, error.retry_after
  end

  def test_the_last_failure_is_told_and_what_may_have_been_got_is_given_back
    stage = Stage.new(otherwise: DropAfterSend.new)
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 10) }
    assert_raises(TransportError) { moved_until(stage, waiting) }
    assert_equal DELETE, stage.sent.last
    assert_operator stage.sent.count(POST), :>=, 4
    assert_operator stage.clock.now, :>=, 10 - Rests::REST_SECONDS_MAX
    refute stage.held?
  end

  def test_what_waiting_does_not_help_ends_it
    { [401, "invalid_credentials"] => AuthenticationError, [403, "missing_permission"] => PermissionDeniedError,
      [400, "invalid_wait"] => ValidationError, [409, "lock_ownership_lost"] => LockOwnershipLostError }
      .each do |(status, code), kind|
      stage = Stage.new([answers(status, code)])
      assert_raises(kind) { stage.locks.acquire(KEY, ttl: 30, wait: 100) }
      assert_equal [POST], stage.sent
    end
  end

  # LEASE-5: by the third request the lease that the first was granted is in its margin.
  def test_a_grant_that_ran_out_unheard_of_is_waited_for_anew_with_a_new_token
    stage = Stage.new([DropAfterSend.new, unavailable(retry_after: "9")])
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 10, wait: 100, token: TOKEN) }
    eventually { stage.clock.next_due.between?(9, 9.9) }
    stage.clock.advance(9.9)
    lease = waiting.value
    assert_equal [POST, POST, POST, DELETE, POST], stage.sent
    assert_equal ([TOKEN] * 4) + [lease.token], stage.network.seen.map(&:token)
    assert stage.locks.renew(KEY, lease)
  end

  # It cannot have lapsed, so whatever that is, asking on and on would not mend it.
  def test_a_new_token_that_is_told_of_a_loss_at_once_ends_the_wait
    stage = Stage.new([DropAfterSend.new], otherwise: answers(409, "lock_ownership_lost"))
    assert_raises(LockOwnershipLostError) { stage.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_equal [POST, POST, DELETE, POST], stage.sent
  end

  def test_a_loss_at_the_end_of_the_wait_is_told_and_given_back
    stage = Stage.new([DropAfterSend.new, Delay.new(14.5)])
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 15, wait: 14.5) }
    eventually { stage.sent == [POST, POST] }
    stage.clock.advance(14.5)
    assert_raises(LockOwnershipLostError) { waiting.value }
    assert_equal [POST, POST, DELETE], stage.sent
  end

  # A server that knows nothing of waiting, or answers at once for whatever reason.
  def test_a_server_that_does_not_wait_is_not_hammered
    stage = Stage.new(otherwise: answers(409, "lock_held"))
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 100) }
    assert_raises(LockHeldError) { moved_until(stage, waiting) }
    assert_includes 19..60, stage.sent.length
  end

  def test_a_closed_client_gives_its_places_back
    stage, rival = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    stage.client.close
    error = assert_raises(VolcanoError) { waiting.value }
    assert_equal "this client is closed", error.message
    assert_equal [POST, DELETE], stage.sent
    assert_equal 0, stage.server.waiters(KEY)
    stage.others.release(KEY, rival)
    refute stage.held?
  end

  def test_a_client_that_is_closed_while_a_wait_rests_gives_the_place_back_too
    stage, = held_by_a_rival
    waiting = waiter(stage) { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    stage.network.script << unavailable(retry_after: "9")
    stage.clock.advance(SLICE)
    eventually { stage.clock.next_due > SLICE + 8 }
    stage.client.close
    assert_equal("this client is closed", assert_raises(VolcanoError) { waiting.value }.message)
    assert_equal [POST, POST, DELETE], stage.sent
  end

  # Many waits take nothing from the renewals beside them.
  def test_real_time_more_waits_than_the_client_has_threads_for_requests_keep_no_renewal
    stage, rival = held_by_a_rival
    other = stage.locks.acquire("other", ttl: 30)
    crowd = Array.new(Workers::THREADS_MAX + 6) do
      quiet_thread { stage.locks.with_lock(KEY, ttl: 30, wait: 600) { 1 } }
    end
    eventually { stage.server.waiters(KEY) == crowd.length }
    assert stage.locks.renew("other", other)
    stage.others.release(KEY, rival)
    assert_equal crowd.length, crowd.sum(&:value)
  end

  def test_what_is_no_wait_is_refused_before_anything_is_sent
    stage = Stage.new
    [-1, -0.1, Float::NAN].each do |wait|
      error = assert_raises(ArgumentError) { stage.locks.acquire(KEY, ttl: 30, wait: wait) }
      assert_match(/wait must be at least 0 seconds/, error.message)
      assert_raises(ArgumentError) { stage.locks.with_lock(KEY, ttl: 30, wait: wait) { flunk } }
    end
    error = assert_raises(TypeError) { Arguments.checked_seconds("wait", "5") }
    assert_equal "wait must be a number of seconds, got String", error.message
    assert_raises(TypeError) { Arguments.checked_seconds("wait", true) }
    assert_empty stage.network.seen
  end

  private

  def held_by_a_rival(ttl: LONG)
    stage = Stage.new
    [stage, stage.others.acquire(KEY, ttl: ttl)]
  end

  # A thread that stands in the line.
  def waiter(stage, &work)
    thread = quiet_thread(&work)
    eventually { stage.server.waiters(KEY) == 1 }
    stage.clock.settle
    thread
  end

  def bodies(stage)
    stage.network.seen.select { |one| one.verb == "POST" }.map { |one| JSON.parse(one.body) }
  end

  # What the thread gives, while time goes by.
  def moved_until(stage, thread)
    eventually do
      stage.clock.advance(0.1)
      !thread.alive?
    end
    thread.value
  end
end

# SDK-11, SDK-4: a lease that was waited for began nobody here knows when.
class TestConfirming < Minitest::Test
  include Kit

  def test_an_answer_within_a_third_of_the_ttl_counts_from_its_request
    stage = Stage.new([Takes.new(10)])
    lease = stage.locks.acquire(KEY, ttl: 30, wait: 60)
    assert_equal [[POST], 30.0], [stage.sent, lease.deadline]
  end

  def test_one_that_came_later_is_confirmed_by_one_renewal_and_counts_from_that
    [10.1, 24, 34].each do |seconds|
      stage = Stage.new([Delay.new(seconds)])
      waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { stage.sent == [POST] }
      stage.clock.advance(seconds)
      assert_equal seconds + 30, waiting.value.deadline
      assert_equal [POST, PATCH], stage.sent
    end
  end

  def test_one_that_cannot_be_confirmed_is_given_back_and_waited_for_with_a_new_token
    stage = Stage.new([Takes.new(34)])
    lease = stage.locks.acquire(KEY, ttl: 30, wait: 60, token: TOKEN)
    assert_equal [POST, PATCH, DELETE, POST], stage.sent
    tokens = stage.network.seen.map(&:token)
    assert_equal [TOKEN] * 3, tokens.first(3)
    refute_equal TOKEN, tokens.last
    assert_equal lease.token, tokens.last
  end

  def test_after_a_confirmation_that_failed_it_rests_as_the_server_says
    quota = answers(429, "lock_rate_limited", headers: { "retry-after" => "40" })
    stage = Stage.new([Takes.new(20), quota])
    waiting = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 100) }
    eventually { stage.sent == [POST, PATCH, DELETE] && stage.clock.next_due.between?(60, 64) }
    stage.clock.advance(44)
    assert waiting.value
  end

  def test_at_the_end_of_the_wait_that_is_told_and_given_back
    stage = Stage.new([Takes.new(20), answers(401, "invalid_credentials")])
    error = assert_raises(TransportError) { stage.locks.acquire(KEY, ttl: 30, wait: 20) }
    assert_match(/could not be confirmed/, error.message)
    assert_equal [POST, PATCH, DELETE], stage.sent
    refute stage.held?
  end
end

# SDK-4: an acquisition ends 90 days after its grant, which may have been before the request that told of it.
class TestTheEndOfAnAcquisition < Minitest::Test
  include Kit

  LONG = 7_776_000

  def test_it_counts_from_before_the_grant_and_not_from_the_repetition_that_told_of_it
    [nil, 600].each do |wait|
      stage = Stage.new([Hang.new])
      lost = Queue.new
      holding = quiet_thread do
        stage.locks.with_lock(KEY, ttl: LONG, wait: wait) do |guard|
          stage.clock.jump(LONG - 0.001 - stage.clock.now)
          lost << guard.lost?
          stage.clock.jump(0.001)
          lost << guard.lost?
        end
      end
      eventually { stage.sent == [POST] && stage.held? }
      stage.clock.advance((wait ? Wait::WAIT_SLICE_SECONDS : 0) + 10)
      assert_raises(LockOwnershipLostError) { holding.value }
      assert_equal [[POST, POST, DELETE], false, true], [stage.sent, lost.pop, lost.pop]
    end
  end

  def test_a_confirmation_does_not_move_it
    stage = Stage.new([Takes.new(40)])
    assert_equal 0.0, granted_after(stage, ttl: 60)
    assert_equal [POST, PATCH], stage.sent
  end

  # A token that was told that somebody else holds the lock was granted nothing before it asked.
  def test_the_time_in_the_line_is_no_part_of_it
    stage = Stage.new([DropAfterSend.new])
    rival = stage.others.acquire(KEY, ttl: LONG)
    waiting = quiet_thread { granted_after(stage, ttl: LONG) }
    eventually { stage.server.waiters(KEY) == 1 }
    stage.clock.advance((Wait::WAIT_SLICE_SECONDS * 3) + 1)
    stage.others.release(KEY, rival)
    assert_equal Wait::WAIT_SLICE_SECONDS * 2, waiting.value
  end

  private

  def granted_after(stage, ttl:)
    acquisition = stage.locks.instance_variable_get(:@flows).acquisition(KEY, ttl, wait: Float::INFINITY)
    acquisition.run
    acquisition.granted_after
  end
end

# SDK-11: rests between two requests.
class TestRests < Minitest::Test
  include Kit

  def test_they_grow_to_a_bound_with_jitter_and_begin_anew
    firsts = Array.new(20) { Rests.new.seconds(trouble) }
    assert_operator firsts.uniq.length, :>, 10, "what fails for all at once does not bring all back at once"
    firsts.each { |first| assert_includes Rests::REST_SECONDS_MIN..(2 * Rests::REST_SECONDS_MIN), first }
    rests = Rests.new
    later = Array.new(40) { rests.seconds(trouble) }
    later.each { |rest| assert_includes Rests::REST_SECONDS_MIN..Rests::REST_SECONDS_MAX, rest }
    assert_operator later.max, :>, 2 * Rests::REST_SECONDS_MIN
    rests.over
    assert_includes Rests::REST_SECONDS_MIN..(2 * Rests::REST_SECONDS_MIN), rests.seconds(trouble)
  end

  def test_a_retry_after_is_kept_and_lengthened_by_up_to_a_tenth_also_at_first
    told = RateLimitedError.new("spent", status: 429, retry_after: 30)
    unconfirmed = Wait.const_get(:UnconfirmedError).new("unconfirmed", retry_after: 30, request_id: nil)
    [told, unconfirmed].each do |failure|
      20.times { assert_includes 30.0..33.0, Rests.new.seconds(failure) }
    end
  end

  def test_no_answer_is_followed_by_none_at_first
    rests = Rests.new
    assert_equal 0.0, rests.seconds(TransportError.new("broken"))
    assert_operator rests.seconds(TransportError.new("broken")), :>=, Rests::REST_SECONDS_MIN
  end

  private

  def trouble
    ServerError.new("in trouble", status: 500)
  end
end

# SDK-11, SDK-2, case 37: whatever cuts a wait short, in each of its phases, leaves neither a lease nor a place.
class TestInterruptedWaits < Minitest::Test
  include Kit

  class Cut < StandardError; end

  def test_real_time_a_wait_that_is_interrupted_in_the_line
    strikes.each do |strike|
      stage = Stage.new
      rival = stage.others.acquire(KEY, ttl: 30)
      thread = quiet_thread { stage.locks.with_lock(KEY, ttl: 30, wait: Float::INFINITY) { flunk } }
      eventually { stage.server.waiters(KEY) == 1 }
      cut(thread, strike)
      assert_equal [POST, DELETE], stage.sent
      assert_equal 0, stage.server.waiters(KEY)
      stage.others.release(KEY, rival)
      refute stage.held?
    end
  end

  def test_real_time_a_wait_that_is_interrupted_while_it_rests
    strikes.each do |strike|
      stage = Stage.new([answers(429, "lock_rate_limited", headers: { "retry-after" => "60" })])
      thread = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
      eventually { stage.clock.next_due > TestWaiting::SLICE + 10 && stage.clock.next_due < 100 }
      cut(thread, strike)
      assert_equal [POST, DELETE], stage.sent
    end
  end

  def test_real_time_a_wait_that_is_interrupted_while_its_lease_is_confirmed
    strikes.each do |strike|
      stage = Stage.new([Takes.new(20), Hang.new])
      thread = quiet_thread { stage.locks.acquire(KEY, ttl: 30, wait: 60) }
      eventually { stage.sent == [POST, PATCH] }
      cut(thread, strike)
      assert_equal [POST, PATCH, DELETE], stage.sent
      refute stage.held?
    end
  end

  def test_real_time_a_timeout_around_a_wait
    stage = Stage.new
    stage.others.acquire(KEY, ttl: 30)
    assert_raises(Timeout::Error) do
      Timeout.timeout(0.05) { stage.locks.acquire(KEY, ttl: 30, wait: Float::INFINITY) }
    end
    assert_equal [POST, DELETE], stage.sent
    assert_equal 0, stage.server.waiters(KEY)
  end

  # Ctrl-C, which Ruby lets nothing defer.
  def test_real_time_ctrl_c_gives_the_place_back
    program = <<~RUBY
      require "volcano_locks/testing"
      kit = VolcanoLocks::Testing
      server = kit::FakeLocks.new
      network = kit::FlakyTransport.new(server, server.clock)
      client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", clock: server.clock, transport: network)
      server.client.locks.acquire("k", ttl: 30)
      Thread.new do
        sleep 0.001 until server.waiters("k") == 1
        Process.kill("INT", Process.pid)
      end
      begin
        client.locks.with_lock("k", ttl: 30, wait: Float::INFINITY) { puts "body" }
      rescue Interrupt
        puts network.seen.map(&:verb).join(" "), server.waiters("k")
      end
    RUBY
    command = [{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-e"]
    assert_equal "POST DELETE\n0\n", IO.popen([*command, program], &:read)
  end

  private

  def strikes
    [->(thread) { thread.raise(Cut) }, lambda(&:kill)]
  end

  def cut(thread, strike)
    strike.call(thread)
    thread.join(PATIENCE_SECONDS) || flunk("it hangs")
  rescue Cut
    nil
  end
end

# SDK-12: holding at least so long.
class TestHoldingOn < Minitest::Test
  include Kit

  def test_a_job_that_ends_sooner_leaves_the_lock_taken_until_then
    stage = Stage.new
    assert_equal(:done, stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { stage.clock.advance(0.2) || :done })
    assert_equal [[POST, PATCH], '{"ttl_seconds":60}'], [stage.sent, stage.network.seen.last.body]
    stage.clock.jump(60.7)
    assert stage.held?
    stage.clock.jump(0.3)
    refute stage.held?
  end

  def test_a_long_lease_is_shortened_to_the_rest_in_whole_seconds_but_not_below_the_shortest
    { 20.5 => 40, 59 => 5, 0.1 + 0.2 => 60 }.each do |seconds, rest|
      stage = Stage.new
      stage.locks.with_lock(KEY, ttl: 3_600, hold_at_least: 60) { stage.clock.jump(seconds) }
      assert_equal JSON.generate({ ttl_seconds: rest }), stage.network.seen.last.body
    end
  end

  def test_a_job_that_took_as_long_releases_as_ever
    stage = Stage.new
    stage.locks.with_lock(KEY, ttl: 600, hold_at_least: 10) { stage.clock.jump(10) }
    assert_equal [POST, DELETE], stage.sent
  end

  def test_it_counts_from_the_entering_not_from_the_asking
    stage = Stage.new
    rival = stage.others.acquire(KEY, ttl: 600)
    working = quiet_thread { stage.locks.with_lock(KEY, ttl: 600, wait: 200, hold_at_least: 60) { 1 } }
    eventually { stage.server.waiters(KEY) == 1 }
    stage.clock.advance(100)
    stage.others.release(KEY, rival)
    assert_equal 1, working.value
    assert_equal [PATCH, '{"ttl_seconds":60}'], [stage.sent.last, stage.network.seen.last.body]
  end

  def test_whatever_way_the_body_ends
    [-> { raise BodyError }, -> { throw :out }].each do |way|
      stage = Stage.new
      catch(:out) do
        stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { way.call }
      rescue BodyError
        nil
      end
      assert_equal [POST, PATCH], stage.sent
    end
  end

  def test_a_last_renewal_that_is_not_confirmed_is_told_quietly_and_the_lease_expires_when_it_would_have
    stage = Stage.new
    guard = nil
    told = without_warnings do
      stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do |given|
        guard = given
        stage.network.otherwise = Reset.new
      end
    end
    assert_kind_of TransportError, guard.release_error
    assert_match(/held on to/, told.join)
    assert_equal [POST, PATCH, PATCH], stage.sent
    assert stage.held?
  end

  def test_a_loss_that_only_the_last_renewal_finds_is_a_loss
    stage = Stage.new
    error = assert_raises(LockOwnershipLostError) do
      stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) { stage.others.force_release(KEY) }
    end
    assert_equal 409, error.status
  end

  def test_a_lost_lease_is_not_held_on_to
    stage = Stage.new
    assert_raises(LockOwnershipLostError) do
      stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 600) { stage.clock.jump(31) }
    end
    assert_equal [POST, DELETE], stage.sent
  end

  # A renewal that landed after the last one would end the lease too soon.
  def test_real_time_a_renewal_under_way_comes_to_its_end_first
    stage = Stage.new
    order = Queue.new
    begun = Queue.new
    stage.server.define_singleton_method(:call) do |request|
      if request.verb == "PATCH" && request.body == '{"ttl_seconds":30}'
        begun << true
        sleep 0.05
      end
      super(request).tap { order << request.body }
    end
    stage.locks.with_lock(KEY, ttl: 30, hold_at_least: 60) do
      stage.clock.jump(11)
      begun.pop
    end
    assert_equal(['{"ttl_seconds":30}', '{"ttl_seconds":30}', '{"ttl_seconds":49}'], Array.new(3) { order.pop })
  end

  def test_what_is_no_such_time_is_refused_before_anything_is_sent
    stage = Stage.new
    [-1, Float::INFINITY, 7_776_001].each do |seconds|
      error = assert_raises(ArgumentError) { stage.locks.with_lock(KEY, ttl: 30, hold_at_least: seconds) { flunk } }
      assert_match(/hold_at_least must be from 0 to 7776000 seconds/, error.message)
    end
    assert_empty stage.network.seen
  end
end
