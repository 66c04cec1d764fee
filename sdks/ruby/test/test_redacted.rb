# frozen_string_literal: true

require_relative "test_helper"
require "yaml"

class TestRedacted < Minitest::Test
  include TestHelper

  # SDK-8
  def test_printing_and_serialising_show_no_secret
    fixture = Fixture.new
    guard_shown = fixture.locks.with_lock(KEY, ttl: 30, token: TOKEN) { |guard| shown(guard) }
    lease = fixture.locks.acquire(KEY, ttl: 30)
    everything = [fixture.client, fixture.locks, lease, fixture.network.seen.last].map do |one|
      shown(one)
    end << guard_shown
    everything.each do |text|
      [TOKEN, lease.token, "sk-secret"].each { |secret| refute_includes text, secret }
    end
    [lease, fixture.client].each { |one| assert_raises(TypeError) { Marshal.dump(one) } }
  end

  private

  def shown(one)
    [one.inspect, one.to_s, "#{one}", one.pretty_inspect, one.to_json, one.as_json, JSON.generate([one]), # rubocop:disable Style/RedundantInterpolation
     YAML.dump(one)].join
  end
end
