# frozen_string_literal: true

require_relative "../test_helper"

# SDK-10: rules that the conformance scenarios show for servers only, and sharing a fake.
class TestFakeServer < Minitest::Test
  include TestHelper

  def setup
    @clock = Testing::ManualClock.new
    @locks = Testing::FakeClient.new(@clock).locks
  end

  # LEASE-8, LEASE-9
  def test_another_owner_renews_and_releases_nothing
    others_lease = Testing::FakeClient.new.locks.acquire(KEY, ttl: 30)
    assert_raises(LockOwnershipLostError) { @locks.renew(KEY, others_lease) }
    lease = @locks.acquire(KEY, ttl: 30)
    assert_raises(LockOwnershipLostError) { @locks.renew(KEY, others_lease) }
    assert_raises(LockOwnershipLostError) { @locks.release(KEY, others_lease) }
    assert_equal lease.fencing_token, @locks.get(KEY).fencing_token
  end

  def test_clients_of_one_fake_contend_and_locks_are_independent
    server = Testing::FakeLocks.new(@clock)
    Testing::FakeClient.new(server: server).locks.acquire(KEY, ttl: 30)
    assert_raises(LockHeldError) { server.client(holder: "other").locks.acquire(KEY, ttl: 30) }
    server.client.locks.acquire("another", ttl: 30)
  end
end
