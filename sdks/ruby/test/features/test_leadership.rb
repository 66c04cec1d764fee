# frozen_string_literal: true

require_relative "../test_helper"

# SDK-14: views and events in any order.
class TestLeadershipTracker < Minitest::Test
  include TestHelper

  def test_the_fencing_token_decides_which_is_newer
    tracker = LeadershipTracker.new
    tracker.update_from_view(view(held: true, fencing_token: 5, holder: "a"))
    tracker.update_from_event(event("released", 4))
    assert_equal "a", tracker.latest.holder
    tracker.update_from_event(event("acquired", 6, "b"))
    assert_equal ["b", 6, Time.utc(2026, 7, 20, 14)],
                 [tracker.latest.holder, tracker.latest.fencing_token, tracker.latest.since]
    tracker.update_from_event(event("expired", 6))
    refute_predicate tracker.latest, :held?
    tracker.update_from_event(event("renewed", 6, "b"))
    tracker.update_from_view(view(held: true, fencing_token: 6, holder: "b"))
    refute_predicate tracker.latest, :held?, "an ended lease stays ended"
    tracker.update_from_event(event("renewed", 7, "c"))
    assert_equal ["c", nil], [tracker.latest.holder, tracker.latest.since]
  end

  def test_other_events_change_nothing
    tracker = LeadershipTracker.new
    tracker.update_from_view(view(held: false))
    first = tracker.latest
    [event("waiting", nil), event("acquired", nil), event("acquired", 2**53), event("later", 5),
     ServerSentEvent.new("acquired", "{", nil)].each { |event| tracker.update_from_event(event) }
    assert_same first, tracker.latest
  end

  def test_leaderships_are_equal_if_both_are_free_or_have_the_same_token
    held = ->(token, holder) { Leadership.new(held: true, fencing_token: token, holder: holder) }
    assert_equal [held.call(5, "a"), Leadership.new(held: false, since: Time.now)],
                 [held.call(5, "b"), Leadership.new(held: false)]
    assert_equal held.call(5, "a").hash, held.call(5, "b").hash
    refute_equal held.call(5, "a"), held.call(6, "a")
  end

  private

  def view(**fields)
    LockView.new(key: KEY, waiters: 0, **fields)
  end

  def event(kind, token, holder = nil)
    body = { key: KEY, fencing_token: token, holder: holder, at: "2026-07-20T14:00:00.000Z", why: "because" }
    ServerSentEvent.new(kind, JSON.generate(body), nil)
  end
end
