# frozen_string_literal: true

require_relative "../test_helper"

class TestRenewalPlan < Minitest::Test
  include TestHelper

  Renew = RenewalPlan::Renew
  WaitUntil = RenewalPlan::WaitUntil

  def plan(ttl: 30, at: 100.0, acquired_at: at, timeout: 10.0, jitter: 0.5, **options)
    RenewalPlan.new(ttl_seconds: ttl, acquired_at: acquired_at, deadline: at + ttl, timeout_seconds: timeout,
                    jitter: jitter, **options)
  end

  # SDK-3
  def test_the_first_attempt_comes_after_about_a_third_of_the_ttl
    assert_equal WaitUntil.new(110.0), plan.next_step(100.0)
    assert_in_delta 109.0, plan(jitter: 0.0).next_step(100.0).instant
    assert_in_delta 111.0, plan(jitter: 1.0).next_step(100.0).instant
    assert_instance_of Renew, plan.next_step(110.0)
  end

  # SDK-4, case 6: no request outlasts its lease, and a short one leaves time for another
  def test_an_attempt_may_take_half_of_the_remaining_time
    assert_equal Renew.new(10.0), plan.next_step(110.0)
    assert_equal Renew.new(5.0), plan.next_step(120.0)
    assert_equal Renew.new(1.0), plan(ttl: 5).next_step(103.5)
  end

  # cases 3, 5: only a response moves the deadline
  def test_failures_do_not_move_the_deadline
    renewal_plan = plan
    20.times { |number| renewal_plan.failed(110.0 + number) }
    assert_equal 130.0, renewal_plan.deadline
    assert_instance_of RenewalPlan::Lost, renewal_plan.next_step(130.0)
    refute renewal_plan.renewed(160.0, 130.0), "a response after the deadline changes nothing"
    assert_equal 130.0, renewal_plan.deadline
  end

  # SDK-3, case 4
  def test_failures_back_off_and_leave_time_for_another_attempt
    renewal_plan = plan
    renewal_plan.failed(110.0)
    assert_in_delta 110.2, renewal_plan.next_step(110.0).instant
    renewal_plan.failed(110.2)
    assert_in_delta 110.6, renewal_plan.next_step(110.2).instant
    renewal_plan.failed(110.6, 3600)
    assert_in_delta 110.6 + ((129.0 - 110.6) / 2), renewal_plan.next_step(110.6).instant, 0.001
    40.times { renewal_plan.failed(111.0) }
    assert_operator renewal_plan.next_step(111.0).instant, :<=, 114.1
  end

  def test_no_attempt_starts_in_the_last_second
    assert_equal WaitUntil.new(130.0), plan.next_step(129.0)
  end

  def test_a_renewal_resets_the_back_off
    renewal_plan = plan
    5.times { renewal_plan.failed(110.0) }
    assert renewal_plan.renewed(141.0, 111.5)
    assert_equal [141.0, WaitUntil.new(121.0)], [renewal_plan.deadline, renewal_plan.next_step(111.5)]
    renewal_plan.failed(121.0)
    assert_in_delta 121.2, renewal_plan.next_step(121.0).instant
  end

  # SDK-3, case 51: a forced release of a lease of a day is noticed within a minute
  def test_a_long_lease_is_renewed_at_least_every_minute
    [0.0, 0.5, 0.999].each do |jitter|
      instant = plan(ttl: 86_400, at: 0.0, jitter: jitter).next_step(0.0).instant
      assert_includes 54.0..60.0, instant
    end
    assert_in_delta 60.0, plan(ttl: 180, at: 0.0, jitter: 1.0).next_step(0.0).instant, 6.1
    renewal_plan = plan(ttl: 86_400, at: 0.0)
    assert renewal_plan.renewed(86_457.0, 57.0)
    assert_equal WaitUntil.new(114.0), renewal_plan.next_step(57.0)
  end

  # SDK-3
  def test_a_project_that_has_spent_half_of_its_quota_renews_at_a_third_of_the_ttl
    renewal_plan = plan(ttl: 600, at: 0.0, quota_scarce: true)
    assert_equal WaitUntil.new(200.0), renewal_plan.next_step(0.0)
    assert renewal_plan.renewed(800.0, 200.0)
    assert_equal WaitUntil.new(257.0), renewal_plan.next_step(200.0)
    assert renewal_plan.renewed(857.0, 257.0, quota_scarce: true)
    assert_equal WaitUntil.new(457.0), renewal_plan.next_step(257.0)
  end

  # SDK-3
  def test_the_caller_may_fix_the_interval
    assert_equal WaitUntil.new(9.5), plan(ttl: 60, at: 0.0, renew_every: 10.0).next_step(0.0)
    assert_equal WaitUntil.new(1140.0), plan(ttl: 3600, at: 0.0, renew_every: 1200.0).next_step(0.0)
    renewal_plan = plan(ttl: 60, at: 0.0, renew_every: 10.0, jitter: 0.0, quota_scarce: true)
    assert renewal_plan.renewed(70.0, 10.0)
    assert_equal WaitUntil.new(20.0), renewal_plan.next_step(10.0)
  end

  # SDK-3, SDK-7: a renewal that can no longer extend the lease still notices a forced release
  def test_a_lease_ends_after_ninety_days
    renewal_plan = plan(ttl: 7_776_000, at: 0.0)
    assert_equal WaitUntil.new(57.0), renewal_plan.next_step(0.0)
    assert renewal_plan.renewed(7_776_057.0, 57.0)
    assert_equal [7_776_000.0, WaitUntil.new(114.0)], [renewal_plan.deadline, renewal_plan.next_step(57.0)]
    renewal_plan = plan(ttl: 4_000_000, at: 0.0)
    assert renewal_plan.renewed(7_900_000.0, 3_900_000.0)
    assert_equal 7_776_000.0, renewal_plan.deadline
  end

  # SDK-4: after a wait, the grant may be older than the request whose response reported it
  def test_ninety_days_count_from_the_grant
    assert_equal 7_776_000.0, plan(ttl: 7_776_000, at: 60.0, acquired_at: 0.0).deadline
  end
end
