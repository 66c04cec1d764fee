# frozen_string_literal: true

require_relative "../test_helper"

# SDK-4: an acquisition ends 90 days after its grant, which may precede the request whose response reported it.
class TestAcquisitionEnd < Minitest::Test
  include TestHelper

  LONG = 7_776_000

  def test_the_end_counts_from_before_the_grant_and_not_from_the_retry_that_reported_it
    [nil, 600].each do |wait|
      fixture = Fixture.new([Hang.new])
      lost = Queue.new
      holding = quiet_thread do
        fixture.locks.with_lock(KEY, ttl: LONG, wait: wait) do |guard|
          fixture.clock.jump(LONG - 0.001 - fixture.clock.now)
          lost << guard.lost?
          fixture.clock.jump(0.001)
          lost << guard.lost?
        end
      end
      eventually { fixture.sent == [POST] && fixture.held? }
      fixture.clock.advance((wait ? AcquireWait::WAIT_SLICE_SECONDS : 0) + 10)
      assert_raises(LockOwnershipLostError) { holding.value }
      assert_equal [[POST, POST, DELETE], false, true], [fixture.sent, lost.pop, lost.pop]
    end
  end

  def test_a_confirmation_does_not_move_the_end
    fixture = Fixture.new([Takes.new(40)])
    assert_equal 0.0, granted_after(fixture, ttl: 60)
    assert_equal [POST, PATCH], fixture.sent
  end

  # A `lock_held` response proves that the token held nothing before.
  def test_the_time_in_the_wait_queue_does_not_count
    fixture = Fixture.new([DropAfterSend.new])
    rival = fixture.others.acquire(KEY, ttl: LONG)
    waiting = quiet_thread { granted_after(fixture, ttl: LONG) }
    eventually { fixture.server.waiters(KEY) == 1 }
    fixture.clock.advance((AcquireWait::WAIT_SLICE_SECONDS * 3) + 1)
    fixture.others.release(KEY, rival)
    assert_equal AcquireWait::WAIT_SLICE_SECONDS * 2, waiting.value
  end

  private

  def granted_after(fixture, ttl:)
    acquisition = fixture.locks.instance_variable_get(:@operations).acquisition(KEY, ttl, wait: Float::INFINITY)
    acquisition.run
    acquisition.granted_after
  end
end
