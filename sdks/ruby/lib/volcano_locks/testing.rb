# frozen_string_literal: true

require_relative "../volcano_locks"

module VolcanoLocks
  # The test kit: `client.locks` without a server, under a clock that the test moves.
  #
  #     require "volcano_locks/testing"
  #
  #     clock = VolcanoLocks::Testing::ManualClock.new
  #     client = VolcanoLocks::Testing::FakeClient.new(clock)
  #     client.locks.with_lock("nightly", ttl: 30) do |guard|
  #       clock.advance(300)         # ten renewals later ...
  #       guard.lost?                # => false
  #       clock.jump(31)             # ... the machine was suspended
  #       guard.lost?                # => true, and leaving the block raises LockOwnershipLostError
  #     end
  #
  # {FakeLocks} is the server, which any number of clients may share. {FaultyTransport} injects faults between a client
  # and a fake or real server. Limit: the fake has no quota and checks no credentials.
  module Testing
  end
end

require_relative "testing/clock"
require_relative "testing/fake_lock"
require_relative "testing/event_log"
require_relative "testing/fake_lock_json"
require_relative "testing/fake_server"
require_relative "testing/faulty_transport"
