# frozen_string_literal: true

require_relative "../test_helper"

# SDK-28: who held a lock.
class TestHistory < Minitest::Test
  include TestHelper

  SHOWN = %i[holder began ended reason renewals held_seconds].freeze

  def setup
    super
    @clock = Testing::ManualClock.new
    @server = Testing::FakeLocks.new(@clock)
    @locks = @server.client(holder: "ann").locks
    @began = @clock.utc_now
    lease = @locks.acquire("a", ttl: 30)
    @clock.advance(1)
    @locks.release("a", @locks.renew("a", lease))
    @clock.advance(1)
    @locks.acquire("a", ttl: 30)
    @clock.advance(1)
    @locks.force_release("a", reason: "stuck")
    @clock.advance(1)
    @locks.acquire("a", ttl: 5)
    @clock.advance(8)
    @locks.acquire("a", ttl: 30)
    @clock.advance(2)
  end

  def test_holds_are_iterated_from_the_latest_to_the_first
    found = @locks.history("a").map { |hold| hold.to_h.values_at(*SHOWN) }
    assert_equal [["ann", "taken_over", nil, nil, 0, 2.0], ["ann", "free", "expired", nil, 0, 6.0],
                  ["ann", "free", "forced", "stuck", 0, 1.0], ["ann", "free", "released", nil, 1, 1.0]], found
    assert_empty @locks.history("b").to_a
  end

  def test_a_period_selects_holds_and_a_block_receives_them
    ends = []
    assert_nil(@locks.history("a", since: @began + 2.5, before: @began + 5) { |hold| ends << hold.ended })
    assert_equal %w[expired forced], ends
    assert_equal(["forced"], @locks.history("a", at: @began + 2.5).map(&:ended))
  end

  def test_an_entry_is_a_value
    hold = @locks.history("a").first
    assert_equal hold, @locks.history("a").first
    assert_predicate hold, :frozen?
    assert_raises(ArgumentError) { hold.with(unknown: 1) }
  end
end
