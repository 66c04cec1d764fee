# frozen_string_literal: true

require_relative "test_helper"

# This client and the real server (`volcano-locks dev`, from the repository's .venv), in real time.
class TestRealServer < Minitest::Test
  include TestHelper

  PROGRAM = ENV["VOLCANO_LOCKS_PROGRAM"] || File.expand_path("../../../.venv/bin/volcano-locks", __dir__)

  def setup
    @reader, writer = IO.pipe
    @server = Process.spawn({ "RUBYOPT" => nil }, PROGRAM, "dev", "--port", "0", out: writer, err: File::NULL)
    writer.close
    shown = +""
    shown << (@reader.gets || flunk("the server ended: #{shown}")) until shown.include?("Ctrl-C")
    @given = shown.scan(/export (VOLCANO_\w+)=(\S+)/).to_h
    @client = new_client
  end

  def teardown
    @client&.close
    Process.kill("TERM", @server)
    Process.wait(@server)
    @reader.close
  end

  def test_real_time_each_operation
    lease = @client.locks.acquire("ruby:a.b-c_1", ttl: 30)
    assert_in_delta Time.now.to_f + 30, lease.expires_at.to_f, 10
    assert_raises(LockHeldError) { new_client.locks.acquire("ruby:a.b-c_1", ttl: 30) }
    assert_equal lease.fencing_token, @client.locks.acquire("ruby:a.b-c_1", ttl: 30, token: lease.token).fencing_token
    renewed = new_client.locks.renew("ruby:a.b-c_1", Lease.from_record(lease.to_record), ttl: 60)
    assert_operator renewed.expires_at, :>, lease.expires_at
    state = @client.locks.get("ruby:a.b-c_1")
    assert_equal [true, renewed.expires_at, lease.fencing_token], [state.held?, state.expires_at, state.fencing_token]
    @client.locks.release("ruby:a.b-c_1", lease)
    refute @client.locks.get("ruby:a.b-c_1").held?
    @client.locks.force_release("ruby:a.b-c_1")
    error = assert_raises(LockOwnershipLostError) { @client.locks.renew("ruby:a.b-c_1", lease, request_id: REQUEST_ID) }
    assert_equal [409, "lock_ownership_lost", REQUEST_ID], [error.status, error.code, error.request_id]
  end

  def test_real_time_a_block_is_renewed_and_sees_a_forced_release
    error = assert_raises(LockOwnershipLostError) do
      @client.locks.with_lock(KEY, ttl: 5) do |guard|
        first = guard.lease
        eventually { guard.lease.expires_at > first.expires_at }
        new_client.locks.force_release(KEY)
        assert guard.wait_lost(timeout: PATIENCE_SECONDS)
      end
    end
    assert_equal 409, error.status
    assert_equal 5, @client.locks.with_lock(KEY, ttl: 5) { 5 }
  end

  def test_real_time_one_of_many_acquires_succeeds
    results = Array.new(8) do
      quiet_thread do
        @client.locks.acquire("race", ttl: 30).fencing_token
      rescue LockHeldError
        nil
      end
    end.map(&:value)
    assert_equal 1, results.compact.length
  end

  # SDK-11, SDK-14, SDK-15
  def test_real_time_waiting_watching_and_listing
    lease = new_client(holder: "one").locks.acquire("job:1", ttl: 30)
    changes = @client.locks.watch("job:1")
    assert_equal ["one", lease.fencing_token], [changes.next.holder, lease.fencing_token]
    waiting = quiet_thread { new_client(holder: "two").locks.acquire("job:1", ttl: 30, wait: 60) }
    eventually { @client.locks.view("job:1").waiters == 1 }
    @client.locks.release("job:1", lease)
    second = waiting.value
    assert_operator second.fencing_token, :>, lease.fencing_token
    # The change between the release and the grant may be skipped.
    change = changes.next
    change = changes.next unless change.held?
    assert_equal ["two", second.fencing_token], [change.holder, change.fencing_token]
    assert_equal([["job:1", "two"]], @client.locks.list("job:", state: :held).map { |view| [view.key, view.holder] })
    assert_raises(LockHeldError) { @client.locks.acquire("job:1", ttl: 30, wait: 0.2) }
    cut = quiet_thread { @client.locks.acquire("job:1", ttl: 30, wait: Float::INFINITY) }
    eventually { @client.locks.view("job:1").waiters == 1 }
    cut.kill.join
    eventually { @client.locks.view("job:1").waiters.zero? }
  end

  # SDK-12
  def test_real_time_the_minimum_holding_time
    assert_equal(1, @client.locks.with_lock("nightly", ttl: 30, hold_at_least: 60) { 1 })
    assert_in_delta Time.now.to_f + 60, @client.locks.get("nightly").expires_at.to_f, 10
  end

  def test_real_time_a_wrong_service_key_is_an_authentication_error
    error = assert_raises(AuthenticationError) { new_client(service_key: "sk-wrong").locks.get(KEY) }
    assert_equal [401, "invalid_credentials"], [error.status, error.code]
  end

  # SDK-9
  def test_real_time_a_401_and_a_404_name_the_url
    url = @given.fetch("VOLCANO_API_URL")
    wrong = assert_raises(AuthenticationError) { new_client(service_key: "sk-wrong").locks.get("a") }
    assert_includes wrong.message, "(#{url}/locks/a)"
    lost = assert_raises(NotFoundError) { new_client(api_url: "#{url}/elsewhere").locks.get("a") }
    assert_includes lost.message, "(#{url}/elsewhere/locks/a)"
  end

  private

  def new_client(**options)
    Client.new(api_url: @given.fetch("VOLCANO_API_URL"), service_key: @given.fetch("VOLCANO_SERVICE_KEY"), **options)
  end
end
