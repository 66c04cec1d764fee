# frozen_string_literal: true

require_relative "../test_helper"

# `with_lock` under a clock that the test moves.
class TestBlock < Minitest::Test
  include TestHelper

  # case 18
  def test_the_block_never_runs_without_the_lock
    fixture = Fixture.new
    fixture.others.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    fixture = Fixture.new(otherwise: Reset.new)
    assert_raises(TransportError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    fixture = Fixture.new([Takes.new(11), Takes.new(11)])
    assert_raises(TransportError) { fixture.locks.with_lock(KEY, ttl: 30) { flunk } }
    assert_equal [POST, POST, DELETE], fixture.sent
    refute fixture.held?
  end

  # case 17
  def test_every_way_to_end_the_body_releases_the_lease
    [BodyError, Interrupt, SystemExit, NoMemoryError, SignalException.new("TERM"), NotImplementedError].each do |kind|
      fixture = Fixture.new
      assert_raises(*[kind].map { |one| one.is_a?(Class) ? one : one.class }) do
        fixture.locks.with_lock(KEY, ttl: 30) { raise kind }
      end
      refute fixture.held?, kind.to_s
    end
    fixture = Fixture.new
    assert_equal :broke, (fixture.locks.with_lock(KEY, ttl: 30) { break :broke })
    refute fixture.held?
    assert_equal :thrown, (catch(:out) { fixture.locks.with_lock(KEY, ttl: 30) { throw :out, :thrown } })
    refute fixture.held?
  end

  # case 21
  def test_the_bodys_error_is_raised_with_the_failed_release_attached_and_logged_once
    fixture = Fixture.new
    body_error = BodyError.new("mine")
    warnings = collect_warnings do
      error = assert_raises(BodyError) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          fixture.network.otherwise = Reset.new
          raise body_error
        end
      end
      assert_same body_error, error
      assert_equal [TransportError], VolcanoLocks.attached_errors(error).map(&:class)
    end
    assert_equal 1, warnings.length
  end

  # case 21
  def test_a_frozen_error_of_the_body_is_raised_without_the_loss
    fixture = Fixture.new
    error = assert_raises(BodyError) do
      fixture.locks.with_lock(KEY, ttl: 30) do
        fixture.clock.jump(31)
        raise BodyError.new.freeze
      end
    end
    assert_empty VolcanoLocks.attached_errors(error)
  end

  def test_a_loss_that_the_body_raises_is_not_attached_to_itself
    fixture = Fixture.new
    error = assert_raises(LockOwnershipLostError) do
      fixture.locks.with_lock(KEY, ttl: 30) do |guard|
        fixture.clock.jump(31)
        guard.raise_if_lost!
      end
    end
    assert_empty VolcanoLocks.attached_errors(error)
  end

  # SDK-5
  def test_an_unconfirmed_release_is_logged_and_the_block_succeeds
    fixture = Fixture.new
    guard = nil
    warnings = collect_warnings do
      result = fixture.locks.with_lock(KEY, ttl: 30) do |one|
        guard = one
        fixture.network.otherwise = Reset.new
        5
      end
      assert_equal 5, result
    end
    assert_instance_of TransportError, guard.release_error
    assert_match(/release of lock #{KEY}/, warnings.fetch(0))
    assert_equal [POST, DELETE, DELETE], fixture.sent
  end

  # SDK-5
  def test_the_release_of_a_lost_lease_is_tried_once_and_only_the_loss_is_logged
    fixture = Fixture.new
    warnings = collect_warnings do
      assert_raises(LockOwnershipLostError) do
        fixture.locks.with_lock(KEY, ttl: 30) do
          fixture.clock.jump(30)
          fixture.network.script = [Takes.new(1)]
        end
      end
    end
    assert_equal ["lost the lock #{KEY}: the lease of \"#{KEY}\" is lost: not renewed within its 30 seconds"], warnings
    assert_equal 1, fixture.sent.count(DELETE)
  end

  def test_a_release_is_bounded
    fixture = Fixture.new
    collect_warnings do
      fixture.locks.with_lock(KEY, ttl: 30) { fixture.network.otherwise = Takes.new(5) }
    end
    assert_operator fixture.clock.now, :<=, 10.0
  end

  # SDK-5
  def test_real_time_closing_waits_for_a_release_in_progress
    fixture = Fixture.new
    leaving = Queue.new
    go_on = Queue.new
    fixture.server.define_singleton_method(:call) do |request|
      if request.verb == "DELETE"
        leaving << true
        go_on.pop
      end
      super(request)
    end
    block = quiet_thread { fixture.locks.with_lock(KEY, ttl: 30) { :done } }
    leaving.pop
    closing = quiet_thread { fixture.client.close }
    assert_nil closing.join(0.05)
    go_on << true
    assert closing.join(PATIENCE_SECONDS)
    assert_equal :done, block.value
    refute fixture.held?
  end

  # SDK-1
  def test_a_block_uses_the_callers_ids
    fixture = Fixture.new
    fixture.locks.with_lock(KEY, ttl: 30, token: TOKEN, request_id: REQUEST_ID) do |guard|
      assert_equal [TOKEN, REQUEST_ID], [guard.lease.token, fixture.network.seen.last.request_id]
    end
  end
end
