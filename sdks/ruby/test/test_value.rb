# frozen_string_literal: true

require_relative "test_helper"

# SDK-22: what a client returns is a value.
class TestValue < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @lease = @fixture.others.acquire(KEY, ttl: 30, token: TOKEN)
    @state = @fixture.locks.get(KEY)
    @view = @fixture.locks.view(KEY)
    @change = @fixture.locks.watch(KEY).next
    @values = [@lease, @state, @view, @change]
  end

  def teardown
    @fixture.client.close
  end

  def test_a_value_cannot_be_changed
    @values.each do |value|
      assert_predicate value, :frozen?
      value.to_h.each_value { |field| assert_predicate field, :frozen? unless field.is_a?(Time) }
    end
  end

  def test_held_is_also_a_predicate
    [@state, @view, @change].each { |value| assert_equal [true, true], [value.held, value.held?] }
    free = LockState.new(held: false)
    assert_equal [false, false], [free.held, free.held?]
  end

  def test_to_h_has_the_fields_without_the_token
    assert_equal({ key: KEY, ttl_seconds: 30, expires_at: @lease.expires_at, fencing_token: @lease.fencing_token },
                 @lease.to_h)
    assert_equal({ held: true, expires_at: @lease.expires_at, fencing_token: @lease.fencing_token }, @state.to_h)
    assert_equal %i[key held holder acquired_at renewed_at expires_at ttl_seconds fencing_token waiters queue],
                 @view.to_h.keys
    assert_equal %i[held holder fencing_token since], @change.to_h.keys
  end

  def test_values_are_equal_if_their_content_is
    @values.each do |value|
      twin = value.with
      assert_equal [value, value.hash], [twin, twin.hash]
      assert_equal 1, { value => 1 }[twin]
      refute_equal value, value.with(fencing_token: 1)
      refute_equal value, value.to_h
    end
    refute_equal LockState.new(held: false), Leadership.new(held: false)
    refute_equal @lease, Lease.from_record(@lease.to_record.merge("token" => REQUEST_ID))
  end

  def test_a_value_matches_patterns
    @values.each { |value| assert_pattern(value) { |one| one in { fencing_token: Integer } } }
    assert_pattern(@state) { |state| state in { held: true, expires_at: Time } }
    assert_pattern(@lease) { |lease| lease in Lease[key: KEY, ttl_seconds: 30] }
    refute_pattern(@lease) { |lease| lease in { token: String } }
  end

  def test_inspect_shows_the_fields_without_the_token
    assert_equal "#<VolcanoLocks::LockState held=true expires_at=2026-01-01T00:00:30.000Z " \
                 "fencing_token=#{@lease.fencing_token}>", @state.to_s
    @values.each { |value| refute_includes [value.inspect, value.to_s, value.to_h, value.pretty_inspect].join, TOKEN }
    error = assert_raises(NoMatchingPatternError) { @lease => { fencing_token: String } }
    refute_includes error.full_message, TOKEN
  end

  def test_a_copy_has_the_changed_fields
    assert_equal [false, @state.expires_at], @state.with(held: false).to_h.values_at(:held, :expires_at)
    assert_equal "host/2", @view.with(holder: "host/2").holder
  end

  def test_a_copy_of_a_lease_keeps_its_acquisition
    copy = @lease.with(ttl_seconds: 60)
    assert_equal [KEY, TOKEN, 60, @lease.deadline], [copy.key, copy.token, copy.ttl_seconds, copy.deadline]
    { key: "other", token: REQUEST_ID, deadline: 1e9 }.each do |name, value|
      error = assert_raises(ArgumentError) { @lease.with(name => value) }
      assert_match(/\A#{name} of a lease cannot be changed.* ttl_seconds, expires_at, fencing_token/, error.message)
      refute_includes error.message, REQUEST_ID
    end
    assert_equal 60, @fixture.locks.renew(KEY, copy).ttl_seconds
    @fixture.locks.release(KEY, copy)
    refute @fixture.held?
  end

  private

  def assert_pattern(value)
    assert yield(value), "#{value} does not match"
  end

  def refute_pattern(value)
    refute yield(value), "#{value} matches"
  end
end
