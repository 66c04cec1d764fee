# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../socket_server"

# SDK-2, SDK-5, SDK-11, SDK-18, case 37: Ruby delivers an interrupt when a method begins or returns. These tests send
# one at each such point; afterwards nothing is held or in progress.
#
# Limit: no code can guard the return of `acquire` itself, so it is skipped.
class TestInterruptsAtEveryCall < Minitest::Test
  include TestHelper

  class Cut < StandardError; end

  CLIENT_FILES = File.join(LIBRARY, "volcano_locks")
  POINTS_MAX = 2_000

  # Interrupts a block at the call or return with this number, and returns whether that happened.
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
      point.path.start_with?(CLIENT_FILES) && !point.path.include?("/testing") && !unguarded
    end
  end

  { acquire: ->(locks) { locks.acquire(KEY, ttl: 30) },
    acquire_with_the_callers_token: ->(locks) { locks.acquire(KEY, ttl: 30, token: TOKEN) },
    wait: ->(locks) { locks.acquire(KEY, ttl: 30, wait: 60) },
    with_lock: ->(locks) { locks.with_lock(KEY, ttl: 30, wait: 60) { 1 } } }.each do |name, verb|
    define_method("test_#{name}_leaves_nothing_held_after_an_interrupt_at_any_call") do
      points = (1..POINTS_MAX).find { |number| !interrupted_at(number, verb) }
      assert_operator points, :>, 100
    end
  end

  # SDK-23: the same over an open connection, in the caller's thread
  { acquire: ->(locks) { locks.acquire(KEY, ttl: 600) },
    with_lock: ->(locks) { locks.with_lock(KEY, ttl: 600) { 1 } } }.each do |name, verb|
    define_method("test_real_time_#{name}_over_an_open_connection_leaves_nothing_held_after_an_interrupt") do
      server = SocketServer.new(fake = Testing::FakeLocks.new)
      client = Client.new(api_url: server.url, service_key: "sk-x", timeout: 5)
      points = (1..POINTS_MAX).find do |number|
        client.locks.get("other")
        interrupted = quiet_thread { Strike.new(number).at(Thread.current) { verb.call(client.locks) } }.value
        eventually { !fake.client.locks.get(KEY).held? } if interrupted
        !interrupted
      end
      assert_operator points, :>, 100
    ensure
      client.close
      server.close
    end
  end

  # SDK-23: also a release that is interrupted before it is sent
  def test_real_time_a_release_is_sent_after_an_interrupt_at_any_call
    server = SocketServer.new(fake = Testing::FakeLocks.new)
    client = Client.new(api_url: server.url, service_key: "sk-x", timeout: 5)
    points = (1..POINTS_MAX).find do |number|
      lease = client.locks.acquire(KEY, ttl: 600)
      verb = -> { client.locks.release(KEY, lease) } # not interrupted at its own call
      interrupted = quiet_thread { Strike.new(number + 1).at(Thread.current, &verb) }.value
      eventually { !fake.client.locks.get(KEY).held? }
      !interrupted
    end
    assert_operator points, :>, 50
  ensure
    client.close
    server.close
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
