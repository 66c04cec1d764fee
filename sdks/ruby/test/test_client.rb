# frozen_string_literal: true

require_relative "test_helper"

class TestClient < Minitest::Test
  include TestHelper

  def test_a_closed_client_sends_nothing_and_raises
    fixture = Fixture.new
    lease = fixture.locks.acquire(KEY, ttl: 30)
    2.times { fixture.client.close }
    error = assert_raises(VolcanoError) { fixture.locks.release(KEY, lease) }
    assert_equal "this client is closed", error.message
    assert_equal [POST], fixture.sent
    Client.open(api_url: "http://x.invalid", service_key: "sk-x") { |client| assert_kind_of Client, client }
  end

  def test_a_client_is_neither_copied_nor_passed_to_a_ractor
    client = Client.new(api_url: "http://x.invalid", service_key: "sk-x")
    [-> { client.dup }, -> { client.clone }].each do |copy|
      assert_match(/Ractor/, assert_raises(TypeError, &copy).message)
    end
  end
end
