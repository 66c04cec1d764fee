# frozen_string_literal: true

require_relative "../test_helper"

class TestArguments < Minitest::Test
  include TestHelper

  def test_invalid_arguments_are_refused_before_anything_is_sent
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

  # SDK-27
  def test_the_arguments_of_a_force_release_are_checked
    fixture = Fixture.new
    [0, -1, 2**53].each do |token|
      assert_raises(ArgumentError, token) { fixture.locks.force_release(KEY, fencing_token: token) }
    end
    ["r" * 201, "a\nb", "a\e[2J", "a\u0085", "a\u202eb", "a\u2028b", "a\u200bb", "a\u00ad", "\ufeffa", "a\u{e0041}",
     "\xff", "\xff".b].each do |reason|
      assert_raises(ArgumentError, reason) { fixture.locks.force_release(KEY, reason: reason) }
    end
    assert_empty fixture.network.seen
    fixture.locks.force_release(KEY, reason: "")
    fixture.locks.force_release(KEY, reason: "r\u00e9".encode(Encoding::UTF_16LE))
    assert_equal([nil, "r%C3%A9"], fixture.network.seen.map { |one| one.headers["X-Volcano-Reason"] })
  end

  def test_arguments_of_the_wrong_type_are_type_errors
    ["acquire(:nightly, ttl: 30)", 'acquire("a", ttl: 30.0)', 'acquire("a", ttl: "30")', 'acquire("a", ttl: nil)',
     'acquire("a", ttl: true)', 'acquire("a", ttl: 30, token: 5)', 'renew("a", { ttl: 30 })', 'release("a", nil)',
     "get(nil)", "force_release(5)", 'force_release("a", fencing_token: "7")',
     'force_release("a", reason: :hangs)'].each do |call|
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
  def test_an_argument_that_is_not_a_lease_of_the_key_is_refused_with_the_call_form
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

  # SDK-9: an encoding without ASCII, or invalid text, is a mistake in the argument that it names
  def test_text_in_another_encoding_is_an_argument_error_that_names_the_argument
    fixture = Fixture.new
    locks = fixture.locks
    [TOKEN.encode("UTF-16LE"), "abc".encode("UTF-16"), "abc".encode("UTF-32BE"), "ab\xff"].each do |text|
      { key: -> { locks.get(text) }, prefix: -> { locks.list(text).first },
        token: -> { locks.acquire("k", ttl: 5, token: text) },
        request_id: -> { locks.get("k", request_id: text) },
        holder: -> { Client.new(holder: text, service_key: "sk-x") },
        api_url: -> { Client.new(api_url: text, service_key: "sk-x") },
        service_key: -> { Client.new(api_url: "http://x", service_key: text) },
        state: -> { locks.list(state: text).first }, on_held: -> { locks.exclusive("k", ttl: 5, on_held: text) { 1 } },
        day: -> { locks.exclusive("a-{day}", ttl: 5) { |day| flunk day }.call(text) },
        "key must" => -> { locks.exclusive(text, ttl: 5) { flunk } },
        "key must consist" => -> { locks.exclusive("{day}".encode("UTF-16LE"), ttl: 5) { |day| flunk day } },
        date: -> { Lease.from_record({ **record, "expires_at" => text }) } }.each do |name, call|
        error = assert_raises(ArgumentError, "#{name} #{text.encoding}", &call)
        assert_match(/\b#{name}\b|key must be/, error.message)
      end
    end
    assert_empty fixture.network.seen
  end

  # case 80: a Duration of ActiveSupport says that it is an Integer
  def test_a_ttl_that_is_an_integer_by_class_only_is_converted
    duration = Class.new do
      def is_a?(kind) = kind == Integer || super
      alias_method :kind_of?, :is_a?
      def to_i = 60
      def to_s = "1 minute"
    end.new
    assert_same 60, Arguments.checked_ttl(duration)
    assert_equal ["{\"ttl_seconds\":60}"] * 3, without_signatures(<<~RUBY)
      ttl = Class.new { def is_a?(kind) = kind == Integer || super; def to_i = 60 }.new
      [-> { locks.acquire("k", ttl: ttl) }, -> { locks.with_lock("k", ttl: ttl) { 1 } },
       -> { locks.exclusive("k", ttl: ttl) { 1 }.call }].each do |call|
        call.call
      rescue VolcanoLocks::VolcanoError
        puts sent.shift(sent.length).first.body
      end
    RUBY
  end

  # SDK-3
  def test_the_renewal_interval_is_from_a_second_to_a_third_of_the_ttl
    fixture = Fixture.new
    [0, 0.9, 10.1, -1, Float::NAN, Float::INFINITY].each do |seconds|
      [-> { fixture.locks.with_lock(KEY, ttl: 30, renew_every: seconds) { flunk } },
       -> { fixture.locks.lead(KEY, ttl: 30, renew_every: seconds) { flunk } },
       -> { fixture.locks.exclusive(KEY, ttl: 30, renew_every: seconds) { flunk } }].each do |call|
        assert_match(/renew_every must be/, assert_raises(ArgumentError, &call).message)
      end
    end
    assert_raises(TypeError) { Arguments.checked_renew_every("5", 30) }
    [nil, 1, 10, Rational(7, 2)].each do |seconds|
      assert_equal(1, fixture.locks.with_lock(KEY, ttl: 30, renew_every: seconds) { 1 })
    end
  end

  # SDK-8
  def test_the_error_of_an_invalid_token_does_not_contain_it
    error = assert_raises(ArgumentError) { Fixture.new.locks.acquire(KEY, ttl: 30, token: "#{TOKEN}0") }
    refute_includes error.full_message, TOKEN
  end

  private

  def record
    Testing::FakeClient.new.locks.acquire(KEY, ttl: 30).to_record
  end

  # Run the code in a Ruby process that does not check signatures.
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
    IO.popen([environment, RbConfig.ruby, "-I", LIBRARY, "-e", program], &:read).split("\n")
  end
end
