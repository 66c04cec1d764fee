# frozen_string_literal: true

require_relative "../test_helper"

class TestHold < Minitest::Test
  include TestHelper

  # cases 3, 8, 12: a response after the end changes nothing
  def test_a_hold_that_has_ended_does_not_change
    lease = Testing::FakeClient.new.locks.acquire(KEY, ttl: 30)
    newer = Lease.new(key: KEY, token: lease.token, ttl_seconds: 30, expires_at: lease.expires_at + 10,
                      fencing_token: lease.fencing_token, deadline: 40.0)
    refusal = LockOwnershipLostError.new("message from the server", status: 409)
    left = Hold.new(lease, Testing::ManualClock.new, 10.0, 0.5, acquired_at: 0.0)
    left.leave
    left.renewed(newer)
    left.lose(refusal)
    assert_same lease, left.lease
    assert_nil left.loss
    lost = Hold.new(lease, Testing::ManualClock.new, 10.0, 0.5, acquired_at: 0.0)
    lost.lose(refusal)
    lost.renewed(newer)
    lost.lose(LockOwnershipLostError.new("again"))
    assert_same lease, lost.lease
    assert_same refusal, lost.loss
    assert_nil lost.next_step
  end

  # SDK-4: the renewal thread read the clock just before a caller saw the loss
  def test_a_renewal_confirmed_after_a_loss_was_seen_does_not_revive_the_lease
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    hold = Hold.new(lease, fixture.clock, 10.0, 0.5, acquired_at: 0.0)
    fixture.clock.jump(30)
    assert hold.lost?
    fixture.clock.define_singleton_method(:now) { 29.9 }
    hold.renewed(lease)
    assert hold.lost?
    assert_instance_of LockOwnershipLostError, hold.loss
  end
end
