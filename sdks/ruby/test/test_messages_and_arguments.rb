# frozen_string_literal: true

require_relative "test_helper"
require "yaml"

class TestMessagesAndArguments < Minitest::Test
  include TestHelper

  # case 35, SDK-7
  def test_dates_of_every_shape_are_read
    {
      "2026-07-20T14:00:10Z" => 0, "2026-07-20T14:00:10.1Z" => 100_000_000, "2026-07-20T14:00:10.123Z" => 123_000_000,
      "2026-07-20T14:00:10.123456Z" => 123_456_000, "2026-07-20T14:00:10.123456789Z" => 123_456_789,
      "2026-07-20T14:00:10+00:00" => 0, "2026-07-20T16:30:10.5+02:30" => 500_000_000, "2026-07-20t14:00:10z" => 0,
      "2026-07-20 09:00:10.000-0500" => 0
    }.each do |text, nanoseconds|
      time = Messages.parse_date(text)
      assert_equal [Time.utc(2026, 7, 20, 14, 0, 10).to_i, nanoseconds], [time.to_i, time.nsec], text
      assert time.utc?, text
    end
  end

  # case 35
  def test_what_is_no_date_is_refused
    ["", "now", "2026-07-20T14:00:10", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "2026-07-20T24:00:00Z",
     "2026-07-20T14:00:60Z", "2026-07-20T14:00:10+25:00", "2026-07-20T14:00:10.1234567890Z", "x2026-07-20T14:00:10Z",
     "2026-07-20T14:00:10Z\n", "\xff"].each do |text|
      assert_raises(ArgumentError, text) { Messages.parse_date(text) }
    end
    assert_raises(TypeError) { Messages.parse_date(5) }
  end

  # case 34, SDK-7
  def test_a_fencing_token_that_another_language_would_round_is_refused
    fixture = Fixture.new
    [(2**53), (2**64), 0, -1, 1.0, "1", true, nil].each do |token|
      body = JSON.generate({ expires_at: "2026-01-01T00:00:30Z", fencing_token: token })
      fixture.network.script << Respond.new(201, body, {})
      error = assert_raises(ServerError) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_match(/fencing_token/, error.message)
    end
    fixture.network.script << Respond.new(201, '{"expires_at":"2026-01-01T00:00:30Z","fencing_token":9007199254740991}')
    assert_equal (2**53) - 1, fixture.locks.acquire(KEY, ttl: 30).fencing_token
  end

  def test_an_answer_that_is_none_of_a_lock_service_is_never_a_grant
    ["", "<html>", "[]", "null", "{}", "\xff", '{"expires_at":"soon","fencing_token":1}',
     '{"expires_at":null,"fencing_token":1}', '{"fencing_token":1}', "[" * 5000].each do |body|
      fixture = Fixture.new([Respond.new(201, body, { "content-type" => "text/html" })])
      error = assert_raises(ServerError, body) { fixture.locks.acquire(KEY, ttl: 30) }
      assert_equal [201, nil], [error.status, error.code]
      refute_nil error.request_id
      assert_equal [POST, DELETE], fixture.sent, "it may have been granted all the same: given back"
    end
  end

  def test_a_read_says_held_or_not_and_nothing_between
    fixture = Fixture.new([Respond.new(200, '{"held":"yes"}'), Respond.new(200, '{"held":true}')])
    2.times { assert_raises(ServerError) { fixture.locks.get(KEY) } }
    assert_equal LockState.new(held: false), fixture.locks.get(KEY)
    lease = fixture.locks.acquire(KEY, ttl: 30)
    state = fixture.locks.get(KEY)
    assert_equal [true, lease.expires_at, lease.fencing_token], [state.held?, state.expires_at, state.fencing_token]
    assert_predicate state, :frozen?
  end

  def test_bad_arguments_are_refused_before_anything_is_sent
    fixture = Fixture.new
    lease = Testing::FakeClient.new.locks.acquire(KEY, ttl: 30)
    ["", "-a", "a/b", "ä", "a\n", "a" * 129, "\xff"].each do |key|
      assert_raises(ArgumentError, key) { fixture.locks.acquire(key, ttl: 30) }
      assert_raises(ArgumentError, key) { fixture.locks.get(key) }
      assert_raises(ArgumentError, key) { fixture.locks.force_release(key) }
      assert_raises(ArgumentError, key) { fixture.locks.with_lock(key, ttl: 30) { flunk } }
    end
    [4, 0, -30, 7_776_001].each do |ttl|
      assert_raises(ArgumentError) { fixture.locks.acquire(KEY, ttl: ttl) }
      assert_raises(ArgumentError) { fixture.locks.renew(KEY, lease, ttl: ttl) }
    end
    assert_raises(ArgumentError) { fixture.locks.acquire(KEY, ttl: 30, request_id: "1") }
    assert_empty fixture.network.seen
  end

  def test_arguments_of_the_wrong_kind_are_type_errors
    ["acquire(:nightly, ttl: 30)", 'acquire("a", ttl: 30.0)', 'acquire("a", ttl: "30")', 'acquire("a", ttl: nil)',
     'acquire("a", ttl: true)', 'acquire("a", ttl: 30, token: 5)', 'renew("a", { ttl: 30 })', 'release("a", nil)',
     "get(nil)", "force_release(5)"].each do |call|
      assert_equal %w[TypeError 0], without_signatures("locks.#{call}"), call
    end
    ["service_key: 5", 'timeout: "5"', "timeout: true", "holder: 5"].each do |option|
      call = "VolcanoLocks::Client.new(api_url: 'http://x', #{option})"
      assert_equal %w[TypeError 0], without_signatures("ENV['VOLCANO_SERVICE_KEY'] = 'sk-x'; #{call}"), option
    end
    assert_equal %w[TypeError 0], without_signatures("VolcanoLocks::Lease.from_record(5)")
    assert_equal %w[ArgumentError 0], without_signatures("VolcanoLocks::LockState.new(held: true).with(key: 1)")
    assert_equal %w[ArgumentError 0], without_signatures("locks.with_lock('a', ttl: 30)"), "without a block"
  end

  # SDK-17
  def test_a_lease_that_is_none_or_of_another_key_is_refused_with_the_form_of_the_call
    fixture = Fixture.new
    lease = fixture.others.acquire("another", ttl: 30)
    { renew: "renew(key, lease, ttl: 60)", release: "release(key, lease)" }.each do |verb, call|
      error = assert_raises(ArgumentError) { fixture.locks.public_send(verb, KEY, lease) }
      assert_includes error.message, 'lease must be a lease of the lock "nightly", got a lease of "another"'
      assert_includes error.message, "call #{call} "
    end
    ["key must be a String, got VolcanoLocks::Lease", "lease must be a VolcanoLocks::Lease, got Hash"]
      .zip([[lease, KEY], [KEY, { ttl: 30 }]]) do |message, (key, other)|
        error = assert_raises(TypeError) { Arguments.checked_lease(key, other, "release(key, lease)") }
        assert_equal "#{message}: call release(key, lease)", error.message
      end
    assert_empty fixture.network.seen
  end

  # SDK-8
  def test_a_bad_token_is_not_repeated_in_the_error
    error = assert_raises(ArgumentError) { Fixture.new.locks.acquire(KEY, ttl: 30, token: "#{TOKEN}0") }
    refute_includes error.full_message, TOKEN
  end

  def test_a_lease_is_a_value
    lease = Testing::FakeClient.new.locks.acquire("a.B-1:c_", ttl: 30, token: TOKEN.upcase)
    assert_predicate lease, :frozen?
    assert_equal TOKEN.upcase, lease.token, "as the caller spelled it"
    assert_equal lease, Lease.from_record(lease.to_record.merge("token" => TOKEN))
    assert_equal lease, Lease.from_record(lease.to_record)
    assert_equal lease.hash, Lease.from_record(JSON.parse(JSON.generate(lease.to_record))).hash
    assert_equal lease, Lease.from_record(lease.to_record.transform_keys(&:to_sym))
    assert_nil Lease.from_record(lease.to_record).deadline
    refute_equal lease, Lease.from_record(lease.to_record.merge("fencing_token" => 1))
  end

  def test_a_lease_keeps_every_digit_of_its_expiry_in_a_record
    %w[2026-01-01T00:00:30Z 2026-01-01T00:00:30.5Z 2026-01-01T00:00:30.123456789Z].each do |text|
      time = Messages.parse_date(text)
      lease = Lease.new(key: KEY, token: TOKEN, ttl_seconds: 30, expires_at: time, fencing_token: 7)
      assert_equal lease, Lease.from_record(lease.to_record), text
    end
  end

  def test_a_broken_record_is_refused_by_the_name_of_its_field
    record = Testing::FakeClient.new.locks.acquire(KEY, ttl: 30).to_record
    record.each_key do |field|
      error = assert_raises(ArgumentError) { Lease.from_record(record.except(field)) }
      assert_match(/#{field}/, error.message)
    end
    { "key" => "/", "token" => "x", "ttl_seconds" => 1, "expires_at" => "x", "fencing_token" => 2**53 }
      .each { |field, value| assert_raises(ArgumentError, field) { Lease.from_record(record.merge(field => value)) } }
    { "key" => 1, "token" => nil, "ttl_seconds" => "30", "expires_at" => 5 }
      .each { |field, value| assert_raises(TypeError, field) { Lease.from_record(record.merge(field => value)) } }
  end

  # SDK-8
  def test_nothing_shows_a_secret_in_passing
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

  # Arguments of the wrong kind, in a Ruby where no signature refuses them first.
  def without_signatures(code)
    program = <<~RUBY
      require "volcano_locks/testing"
      sent = []
      client = VolcanoLocks::Client.new(api_url: "http://x", service_key: "sk-x", transport: ->(one) { sent << one })
      locks = client.locks
      begin
        #{code}
      rescue StandardError => e
        puts e.class, sent.length
      end
    RUBY
    environment = { "RUBYOPT" => nil, "RUBYLIB" => nil }
    library = File.expand_path("../lib", __dir__)
    IO.popen([environment, RbConfig.ruby, "-I", library, "-e", program], &:read).split("\n")
  end
end
