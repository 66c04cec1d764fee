# frozen_string_literal: true

require_relative "../test_helper"

class TestRequestSender < Minitest::Test
  include TestHelper

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
  def test_secrets_in_the_media_type_of_a_success_are_hidden
    echo = Respond.new(201, "page", { "content-type" => "Bearer sk-secret #{TOKEN.swapcase}" })
    error = assert_raises(ServerError) { Fixture.new([echo]).locks.acquire(KEY, ttl: 30, token: TOKEN) }
    assert_match(/\(Bearer \[hidden\] \[hidden\]\)/, error.message)
    [TOKEN, TOKEN.swapcase, "sk-secret"].each { |secret| refute_includes error.full_message, secret }
  end

  # SDK-8
  def test_secrets_in_an_error_of_the_transport_are_hidden
    transport = ->(request) { raise "cannot send #{request.headers}" }
    client = Client.new(api_url: "http://fake.invalid", service_key: "sk-secret", transport: transport)
    error = assert_raises(TransportError) { client.locks.acquire(KEY, ttl: 30, token: TOKEN) }
    assert_match(/cannot send/, error.message)
    [TOKEN, "sk-secret"].each { |secret| refute_includes error.full_message, secret }
    assert_nil error.cause
  end

  def test_a_transport_that_returns_something_else_than_a_response_fails
    client = Client.new(api_url: "http://fake.invalid", service_key: "sk-secret", transport: ->(_request) { "ok" })
    assert_match(/String/, assert_raises(TransportError) { client.locks.get(KEY) }.message)
  end
end
