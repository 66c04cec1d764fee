# frozen_string_literal: true

require_relative "../test_helper"

class TestLease < Minitest::Test
  include TestHelper

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

  def test_a_record_keeps_every_digit_of_the_expiry
    %w[2026-01-01T00:00:30Z 2026-01-01T00:00:30.5Z 2026-01-01T00:00:30.123456789Z].each do |text|
      time = Messages.parse_date(text)
      lease = Lease.new(key: KEY, token: TOKEN, ttl_seconds: 30, expires_at: time, fencing_token: 7)
      assert_equal lease, Lease.from_record(lease.to_record), text
    end
  end

  # case 34
  def test_an_invalid_record_is_refused_with_the_name_of_its_field
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
end
