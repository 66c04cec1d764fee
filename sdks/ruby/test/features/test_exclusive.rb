# frozen_string_literal: true

require_relative "../test_helper"

# SDK-16: exclusive functions.
class TestExclusive < Minitest::Test
  include TestHelper

  def setup
    @fixture = Fixture.new
    @locks = @fixture.locks
  end

  def test_each_call_holds_its_own_lock
    seen = []
    report = @locks.exclusive("report-{day}-{part}", ttl: 60) do |day, part: 0, &given|
      seen << @fixture.others.list.map { |view| [view.key, view.held?] }
      given.call(day, part)
    end
    assert_equal(["mon", 5], report.call("mon", part: 5) { |*args| args })
    assert_equal [[["report-mon-5", true]]], seen
    refute @fixture.held?("report-mon-5")
    assert_equal([:tue, "x"], report.call(:tue, part: "x") { |*args| args })
  end

  def test_a_method_keeps_its_arguments_and_result
    report = @locks.exclusive("report-{day}", ttl: 60, &method(:method_to_wrap))
    assert_equal [:mon, 7, @fixture.server.clock.now], report.call(:mon, more: 7)
    assert_raises(ArgumentError) { report.call(:mon, :tue, :wed) }
    refute @fixture.held?("report-mon")
  end

  def test_the_guard_is_passed_if_the_block_takes_it_and_the_caller_does_not_give_it
    with = @locks.exclusive(KEY, ttl: 60) { |guard:, **rest| [guard, rest] }
    guard, rest = with.call(other: 1)
    assert_kind_of LockGuard, guard
    assert_equal [KEY, { other: 1 }], [guard.key, rest]
    assert_equal(:mine, with.call(guard: :mine).first)
    assert_equal([[1], {}], @locks.exclusive(KEY, ttl: 60) { |*args, **named| [args, named] }.call(1))
  end

  # case 79
  def test_the_proc_works_under_any_self_and_its_block_keeps_the_self_that_wrote_it
    writer = self
    rollup = @locks.exclusive("rollup-{day}", ttl: 60) { |day, more: 0, &given| [self, day, more, given&.call] }
    job = Class.new { define_method(:rollup, &rollup) }.new
    assert_equal([writer, :mon, 5, 7], job.rollup(:mon, more: 5) { 7 })
    assert_equal [writer, :tue, 0, nil], Object.new.instance_exec(:tue, &rollup)
    assert_equal [writer, :wed, 0, nil], BasicObject.new.instance_exec(:wed, &rollup)
    assert_equal [:thu, 0, @fixture.clock.now],
                 Object.new.instance_exec(:thu, &@locks.exclusive("report-{day}", ttl: 60, &method(:method_to_wrap)))
    assert_equal([[POST, DELETE]] * 4, @fixture.sent.each_slice(2).to_a)
  end

  # SDK-16, case 44: Ruby has no generators; lazy results pass, and do their work without the lock
  def test_lazy_results_pass
    lazy = @locks.exclusive(KEY, ttl: 60) { [1, 2].lazy.map { @fixture.held? } }.call
    assert_equal [false, false], lazy.to_a
    assert_equal([1, 2], @locks.with_lock(KEY, ttl: 60) { [1, 2].each }.to_a)
    assert_kind_of(Enumerator, @locks.lead(KEY, ttl: 60) { [1, 2].each })
  end

  def test_on_held_skip_returns_nil_but_raises_the_functions_own_lock_held_error
    @fixture.others.acquire(KEY, ttl: 600)
    assert_nil(@locks.exclusive(KEY, ttl: 60, on_held: :skip) { flunk }.call)
    mine = LockHeldError.new("mine")
    failing = @locks.exclusive("other", ttl: 60, on_held: "skip") { raise mine }
    assert_same(mine, assert_raises(LockHeldError) { failing.call })
  end

  def test_on_held_skip_raises_a_loss
    failing = @locks.exclusive(KEY, ttl: 60, on_held: :skip) { @fixture.clock.jump(61) }
    assert_raises(LockOwnershipLostError) { failing.call }
  end

  def test_an_invalid_template_is_refused_when_the_function_is_made
    ["report-{month}", "report-{guard}", "{day}-{month}"].each do |key|
      error = assert_raises(ArgumentError) { @locks.exclusive(key, ttl: 60) { |day, guard:| [day, guard] } }
      assert_match(/not an argument of the block/, error.message)
    end
    ["report-{day", "report-}", "report {day}", "{Day}", "", "report/{day}"].each do |key|
      assert_raises(ArgumentError, key) { @locks.exclusive(key, ttl: 60) { |day| day } }
    end
    assert_match(/on_held must be/,
                 assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 60, on_held: :never) { 1 } }.message)
    assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 4) { 1 } }
    assert_raises(ArgumentError) { @locks.exclusive(KEY, ttl: 60, hold_at_least: -1) { 1 } }
    assert_empty @fixture.network.seen
  end

  def test_a_call_with_an_argument_that_makes_no_valid_key_is_refused
    report = @locks.exclusive("report-{day}", ttl: 60) { |day = "mon"| flunk day }
    [[], [nil], ["mon day"], ["/"], ["é"]].each { |args| assert_raises(ArgumentError) { report.call(*args) } }
    any = @locks.exclusive("report-{day}", ttl: 60) { |**named| named }
    assert_equal({ day: 5 }, any.call(day: 5))
    assert_raises(ArgumentError) { any.call }
    assert_equal [POST, DELETE], @fixture.sent
  end

  private

  def method_to_wrap(day, _later = nil, guard:, more: 0)
    assert_equal "report-#{day}", guard.key
    [day, more, @fixture.clock.now]
  end
end
