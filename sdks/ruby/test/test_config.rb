# frozen_string_literal: true

require_relative "test_helper"

class TestConfig < Minitest::Test
  include TestHelper

  def test_arguments_take_precedence_over_the_environment
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

  # SDK-25
  def test_the_address_defaults_to_that_of_the_development_server
    [nil, ""].each do |url|
      with_environment("VOLCANO_API_URL" => url, "VOLCANO_SERVICE_KEY" => "sk-env") do
        assert_equal "#<VolcanoLocks::Client http://127.0.0.1:7420>", Client.new.inspect
        assert_match(/api_url/, assert_raises(ArgumentError) { Client.new(api_url: "") }.message)
      end
    end
  end

  # CLI-6, case 64
  def test_inside_run_the_error_says_why_the_key_is_missing
    { "7" => true, nil => false }.each do |fencing_token, inside|
      with_environment("VOLCANO_SERVICE_KEY" => nil, "VOLCANO_LOCK_FENCING_TOKEN" => fencing_token) do
        message = assert_raises(ArgumentError) { Client.new }.message
        assert_match(/service_key is missing/, message)
        assert_equal inside, message.include?("--pass-service-key")
      end
    end
  end

  def test_an_error_names_the_missing_or_invalid_setting
    good = { api_url: "http://x", service_key: "sk-x" }
    with_environment("VOLCANO_API_URL" => nil, "VOLCANO_SERVICE_KEY" => "") do
      assert_match(/VOLCANO_SERVICE_KEY/, assert_raises(ArgumentError) { Client.new }.message)
      assert_match(/VOLCANO_SERVICE_KEY/, assert_raises(ArgumentError) { Client.new(api_url: "http://x") }.message)
    end
    ["x", "ftp://x", "http://", "http://u:p@x", "http://x?a=1", "http://x#f", "http://x y", "http://x\n"].each do |url|
      error = assert_raises(ArgumentError, url) { Client.new(**good, api_url: url) }
      assert_match(/api_url/, error.message)
      refute_includes error.message, "u:p"
    end
    ["127.0.0.1:7420", "http://x y"].each do |url|
      error = assert_raises(ArgumentError, url) { Client.new(**good, api_url: url) }
      assert_includes error.message, "https://locks.example.com", "the error shows an example"
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

  def with_environment(changes)
    before = changes.keys.to_h { |name| [name, ENV.fetch(name, nil)] }
    changes.each { |name, value| ENV[name] = value }
    yield
  ensure
    before.each { |name, value| ENV[name] = value }
  end
end
