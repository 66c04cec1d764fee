# frozen_string_literal: true

require_relative "test_helper"

class TestErrorsAndConfig < Minitest::Test
  include TestHelper

  # SDK-9: spec/errors.yaml is the table; each of its codes has its class.
  def test_every_code_is_raised_as_its_class
    table = File.read(File.expand_path("../../../spec/errors.yaml", __dir__))
    rows = table.scan(/^(\w+):\n  status: (\d+)/)
    refute_empty rows
    rows.each do |code, status|
      fixture = Fixture.new(otherwise: respond(status.to_i, code))
      error = assert_raises(VolcanoError) { fixture.locks.renew(KEY, lease) }
      assert_equal [status.to_i, code, "told so"], [error.status, error.code, error.message]
      assert_instance_of class_for(status.to_i, code), error, code
    end
  end

  # SDK-9
  def test_the_tree_of_errors
    {
      AuthenticationError => VolcanoError, PermissionDeniedError => AuthenticationError,
      ValidationError => VolcanoError, NotFoundError => VolcanoError,
      ConflictError => VolcanoError, LockHeldError => ConflictError,
      LockOwnershipLostError => ConflictError, RateLimitedError => VolcanoError, ServerError => VolcanoError,
      UnavailableError => ServerError, TransportError => VolcanoError, VolcanoError => StandardError
    }.each { |kind, parent| assert_equal parent, kind.superclass }
  end

  # SDK-9
  def test_an_error_carries_what_to_act_on
    fixture = Fixture.new(otherwise: respond(429, "lock_rate_limited", headers: { "retry-after" => "17" }))
    error = assert_raises(RateLimitedError) { fixture.locks.get(KEY, request_id: REQUEST_ID) }
    assert_equal [429, "lock_rate_limited", 17, REQUEST_ID],
                 [error.status, error.code, error.retry_after, error.request_id]
    assert_instance_of Integer, error.retry_after
  end

  def test_other_statuses_fall_back_to_their_family
    { 418 => VolcanoError, 404 => NotFoundError, 413 => ValidationError, 502 => ServerError, 302 => ServerError,
      409 => ConflictError }.each do |status, kind|
      fixture = Fixture.new(otherwise: Respond.new(status, "<html>",
                                                   { "retry-after" => "Wed, 21 Oct 2026 07:28:00 GMT" }))
      error = assert_raises(VolcanoError) { fixture.locks.get(KEY) }
      assert_instance_of kind, error
      assert_equal [nil, nil], [error.code, error.retry_after]
    end
  end

  def test_what_a_proxy_says_is_shown_short_and_printable
    body = JSON.generate({ error: "a\u0000b#{'c' * 1000}", code: 5 })
    error = assert_raises(ServerError) { Fixture.new(otherwise: Respond.new(500, body)).locks.get(KEY) }
    assert_match(/\Aa\?bc{297}\z/, error.message)
  end

  # SDK-8
  def test_secrets_that_a_proxy_echoes_are_hidden
    echo = JSON.generate({ error: "bad: Bearer sk-secret, #{TOKEN.swapcase}", code: "invalid_request" })
    fixture = Fixture.new([Respond.new(400, echo), Respond.new(400, echo)])
    error = assert_raises(ValidationError) { fixture.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    assert_equal "bad: Bearer [hidden], [hidden]", error.message
    error = assert_raises(ValidationError) { fixture.locks.with_lock(KEY, ttl: 30, token: TOKEN) { flunk } }
    [TOKEN, TOKEN.swapcase, "sk-secret"].each { |secret| refute_includes error.full_message, secret }
  end

  # SDK-8
  def test_a_transport_that_repeats_secrets_is_not_quoted
    transport = ->(request) { raise "cannot send #{request.headers}" }
    client = Client.new(api_url: "http://fake.invalid", service_key: "sk-secret", transport: transport)
    error = assert_raises(TransportError) { client.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    assert_match(/cannot send/, error.message)
    [TOKEN, "sk-secret"].each { |secret| refute_includes error.full_message, secret }
    assert_nil error.cause
  end

  def test_a_transport_that_gives_nonsense_is_no_answer
    client = Client.new(api_url: "http://fake.invalid", service_key: "sk-secret", transport: ->(_request) { "ok" })
    assert_match(/String/, assert_raises(TransportError) { client.locks.get(KEY) }.message)
  end

  def test_arguments_come_first_and_then_the_environment
    with_environment("VOLCANO_API_URL" => "http://from.env/base/", "VOLCANO_SERVICE_KEY" => "sk-env") do
      assert_equal "#<VolcanoLocks::Client http://from.env/base>", Client.new.inspect
      assert_equal "#<VolcanoLocks::Client http://given>", Client.new(api_url: "http://given").inspect
    end
    seen = []
    transport = lambda do |request|
      seen << request
      Response.new(200, {}, '{"held":false}')
    end
    with_environment("VOLCANO_API_URL" => "http://from.env", "VOLCANO_SERVICE_KEY" => "sk-env") do
      Client.new(transport: transport).locks.get(KEY)
      Client.new(service_key: "sk-given", holder: "me", transport: transport).locks.get(KEY)
    end
    assert_equal(["Bearer sk-env", "Bearer sk-given"], seen.map { |request| request.headers["Authorization"] })
    assert_match(%r{\A[!-~]+/#{Process.pid}\z}, seen[0].headers["X-Volcano-Lock-Holder"])
    assert_equal "me", seen[1].headers["X-Volcano-Lock-Holder"]
  end

  def test_settings_that_are_missing_or_wrong_are_named
    good = { api_url: "http://x", service_key: "sk-x" }
    with_environment("VOLCANO_API_URL" => nil, "VOLCANO_SERVICE_KEY" => "") do
      assert_match(/VOLCANO_API_URL/, assert_raises(ArgumentError) { Client.new }.message)
      assert_match(/VOLCANO_SERVICE_KEY/, assert_raises(ArgumentError) { Client.new(api_url: "http://x") }.message)
    end
    ["x", "ftp://x", "http://", "http://u:p@x", "http://x?a=1", "http://x#f", "http://x y", "http://x\n"].each do |url|
      error = assert_raises(ArgumentError, url) { Client.new(**good, api_url: url) }
      assert_match(/api_url/, error.message)
      refute_includes error.message, "u:p"
    end
    ["127.0.0.1:7420", "http://x y"].each do |url|
      error = assert_raises(ArgumentError, url) { Client.new(**good, api_url: url) }
      assert_includes error.message, "https://locks.example.com", "what it should look like"
    end
    ["sk x", "sk\n", "sk-ä"].each do |key|
      refute_includes assert_raises(ArgumentError) { Client.new(**good, service_key: key) }.message, key
    end
    [0, -1, Float::NAN, Float::INFINITY].each do |seconds|
      assert_raises(ArgumentError) { Client.new(**good, timeout: seconds) }
    end
    ["", "a b", "a" * 129, "ä"].each { |holder| assert_raises(ArgumentError) { Client.new(**good, holder: holder) } }
  end

  private

  def lease
    Lease.new(key: KEY, token: TOKEN, ttl_seconds: 30, expires_at: Time.now.utc, fencing_token: 1)
  end

  def class_for(status, code)
    conflicts = { "lock_held" => LockHeldError, "lock_ownership_lost" => LockOwnershipLostError }
    return conflicts.fetch(code, ConflictError) if status == 409

    { 400 => ValidationError, 401 => AuthenticationError, 403 => PermissionDeniedError, 404 => NotFoundError,
      413 => ValidationError, 429 => RateLimitedError, 500 => ServerError, 503 => UnavailableError }
      .fetch(status, VolcanoError)
  end

  def with_environment(changes)
    before = changes.keys.to_h { |name| [name, ENV.fetch(name, nil)] }
    changes.each { |name, value| ENV[name] = value }
    yield
  ensure
    before.each { |name, value| ENV[name] = value }
  end
end
