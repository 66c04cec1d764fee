# frozen_string_literal: true

require_relative "test_helper"

# SDK-2, SDK-5, SDK-11, SDK-18, case 37: an interrupt comes where Ruby looks for it, as a method begins or returns.
# Here it comes at each, and nothing stays held or under way.
#
# Not promised, and passed over here: the very return of `acquire`, which nobody can guard.
class TestInterruptsAtEveryCall < Minitest::Test
  include TestHelper

  class Cut < StandardError; end

  LIBRARY = File.expand_path("../lib/volcano_locks", __dir__)
  POINTS_MAX = 2_000

  # What is done, and whether it was interrupted at the call or return of this number.
  class Strike
    def initialize(number)
      @left = number
      @struck = false
    end

    def at(thread)
      trace = TracePoint.new(:call, :return) { |point| strike(point) if Thread.current.equal?(thread) }
      trace.enable { yield } # rubocop:disable Style/ExplicitBlockArgument
      false
    rescue Cut
      true
    end

    private

    def strike(point)
      return if @struck || !of_the_client?(point) || (@left -= 1).positive?

      @struck = true
      Thread.current.raise(Cut)
    end

    def of_the_client?(point)
      unguarded = point.event == :return && File.basename(point.path) == "client.rb" &&
                  point.method_id.start_with?("acquire")
      point.path.start_with?(LIBRARY) && !point.path.include?("/testing") && !unguarded
    end
  end

  { acquire: ->(locks) { locks.acquire(KEY, ttl: 30) },
    acquire_with_the_callers_token: ->(locks) { locks.acquire(KEY, ttl: 30, token: TOKEN) },
    wait: ->(locks) { locks.acquire(KEY, ttl: 30, wait: 60) },
    with_lock: ->(locks) { locks.with_lock(KEY, ttl: 30, wait: 60) { 1 } } }.each do |name, verb|
    define_method("test_#{name}_leaves_nothing_held_wherever_it_is_interrupted") do
      points = (1..POINTS_MAX).find { |number| !interrupted_at(number, verb) }
      assert_operator points, :>, 100
    end
  end

  private

  def interrupted_at(number, verb)
    fixture = Fixture.new
    locks = fixture.locks
    interrupted = quiet_thread { Strike.new(number).at(Thread.current) { verb.call(locks) } }.value
    refute fixture.held?, "at call #{number}" if interrupted
    fixture.clock.settle
    interrupted
  ensure
    fixture.client.close
  end
end
