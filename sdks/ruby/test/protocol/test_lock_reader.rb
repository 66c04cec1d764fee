# frozen_string_literal: true

require_relative "../test_helper"

# SDK-15: views and lists of locks.
class TestLockReader < Minitest::Test
  include TestHelper

  ROW = {
    "key" => "k", "held" => true, "holder" => "host/1", "acquired_at" => "2026-07-20T14:00:00.000Z",
    "renewed_at" => "2026-07-20T14:00:10.000Z", "expires_at" => "2026-07-20T14:00:40.000Z", "ttl_seconds" => 30,
    "fencing_token" => 7, "waiters" => 2
  }.freeze

  def test_pages_of_a_list_are_fetched_on_demand
    fixture = Fixture.new
    keys = (0...250).map { |number| format("k%03d", number) }
    keys.shuffle(random: Random.new(1)).each { |key| fixture.others.acquire(key, ttl: 30) }
    views = fixture.locks.list("k")
    assert_empty fixture.network.seen
    assert_equal "k000", views.next.key
    assert_equal 1, fixture.network.seen.length
    assert_equal keys, views.map(&:key)
    assert_equal 4, fixture.network.seen.length
  end

  def test_the_prefix_and_the_state_are_sent_and_a_block_receives_the_views
    fixture = Fixture.new
    %w[a:1 b:1].each { |key| fixture.others.acquire(key, ttl: 30) }
    keys = []
    assert_nil(fixture.locks.list("a:", state: :held) { |view| keys << view.key })
    assert_equal ["a:1"], keys
    assert_equal ["/locks?prefix=a%3A&state=held&limit=100"], fixture.network.seen.map(&:path)
  end

  def test_a_cursor_is_sent_back_unchanged
    pages = [{ items: [ROW], next_cursor: "locks.a:/é& " }, { items: [], next_cursor: nil }]
    fixture = Fixture.new(pages.map { |page| Respond.new(200, JSON.generate(page)) })
    assert_equal(["k"], fixture.locks.list("a:").map(&:key))
    assert_equal "/locks?prefix=a%3A&state=all&limit=100&cursor=locks.a%3A%2F%C3%A9%26%20",
                 fixture.network.seen.last.path
  end

  def test_an_incomplete_or_invalid_row_is_refused
    broken = { "held" => "yes", "holder" => 5, "acquired_at" => "yesterday", "ttl_seconds" => true,
               "fencing_token" => 2**53, "waiters" => nil, "key" => nil }.map { |name, value| ROW.merge(name => value) }
    broken.concat(ROW.keys.map { |name| ROW.reject { |other, _value| other == name } })
    broken.concat([nil, "ann", ["ann"], [{}], [{ "holder" => 5 }]].map { |queue| ROW.merge("queue" => queue) })
    broken << []
    broken.each do |row|
      fixture = Fixture.new([Respond.new(200, JSON.generate(row)), Respond.new(200, JSON.generate({ items: [row] }))])
      assert_match(/not a response of a lock service/, assert_raises(ServerError) { fixture.locks.view("k") }.message)
      assert_raises(ServerError) { fixture.locks.list.to_a }
    end
    [{}, { items: {} }, { items: [], next_cursor: 5 }, { items: [], next_cursor: "" }].each do |page|
      fixture = Fixture.new([Respond.new(200, JSON.generate(page))])
      assert_raises(ServerError) { fixture.locks.list.to_a }
    end
  end

  # LIST-9
  def test_a_view_has_the_labels_of_the_first_waiters
    row = ROW.merge("queue" => [{ "holder" => "ann", "since" => "2026-07-20T14:00:20.000Z" }, { "holder" => nil }])
    fixture = Fixture.new([row, ROW].map { |one| Respond.new(200, JSON.generate(one)) })
    assert_equal [["ann", nil], []], (Array.new(2) { fixture.locks.view("k").queue })
  end

  def test_invalid_arguments_are_refused_before_anything_is_sent
    fixture = Fixture.new
    assert_match(/prefix must be empty/, assert_raises(ArgumentError) { fixture.locks.list("/") }.message)
    assert_match(/got "taken"/, assert_raises(ArgumentError) { fixture.locks.list(state: "taken") }.message)
    assert_raises(ArgumentError) { fixture.locks.view("/") }
    assert_empty fixture.network.seen
  end
end
