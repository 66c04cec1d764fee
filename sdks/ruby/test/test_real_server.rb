# frozen_string_literal: true

require_relative "test_helper"

# End to end, in real time: this client and the real server (`volcano-locks dev`, from the repository's .venv).
class TestRealServer < Minitest::Test
  include Kit

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

  def test_real_time_the_verbs
    lease = @client.locks.acquire("ruby:a.b-c_1", ttl: 30)
    assert_in_delta Time.now.to_f + 30, lease.expires_at.to_f, 10
    assert_raises(LockHeldError) { new_client.locks.acquire("ruby:a.b-c_1", ttl: 30) }
    assert_equal lease.fencing_token, @client.locks.acquire("ruby:a.b-c_1", ttl: 30, token: lease.token).fencing_token
    renewed = new_client.locks.renew(Lease.from_record(lease.to_record), ttl: 60)
    assert_operator renewed.expires_at, :>, lease.expires_at
    state = @client.locks.get("ruby:a.b-c_1")
    assert_equal [true, renewed.expires_at, lease.fencing_token], [state.held?, state.expires_at, state.fencing_token]
    @client.locks.release(lease)
    refute @client.locks.get("ruby:a.b-c_1").held?
    @client.locks.force_release("ruby:a.b-c_1")
    error = assert_raises(LockOwnershipLostError) { @client.locks.renew(lease, request_id: REQUEST_ID) }
    assert_equal [409, "lock_ownership_lost", REQUEST_ID], [error.status, error.code, error.request_id]
  end

  def test_real_time_a_block_is_renewed_and_a_forced_release_reaches_it
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

  def test_real_time_one_of_many_wins
    results = Array.new(8) do
      quiet_thread do
        @client.locks.acquire("race", ttl: 30).fencing_token
      rescue LockHeldError
        nil
      end
    end.map(&:value)
    assert_equal 1, results.compact.length
  end

  def test_real_time_a_wrong_key_is_told_as_such
    error = assert_raises(AuthenticationError) { new_client(service_key: "sk-wrong").locks.get(KEY) }
    assert_equal [401, "invalid_credentials"], [error.status, error.code]
  end

  private

  def new_client(**options)
    Client.new(api_url: @given.fetch("VOLCANO_API_URL"), service_key: @given.fetch("VOLCANO_SERVICE_KEY"), **options)
  end
end
