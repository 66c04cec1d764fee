# frozen_string_literal: true

require_relative "test_helper"

# The tests check every call against sig/ while they run; these show that they do.
class TestSignatures < Minitest::Test
  include TestHelper

  def test_a_call_that_does_not_match_its_signature_fails
    assert_raises(RBS::Test::Tester::TypeError) { Fixture.new.locks.acquire(KEY, ttl: "30") }
    assert_raises(RBS::Test::Tester::TypeError) { Fixture.new.locks.acquire(5, ttl: 30) }
  end

  # A method without a signature is not checked.
  def test_every_method_has_a_signature
    signed = Dir[File.expand_path("../sig/*.rbs", __dir__)].map { |file| File.read(file) }.join
    [Client, Locks, Value, ForkSafe, RealTime, Lease, LockState, LockView, LockGuard,
     VolcanoError, TransportError, HttpTransport, SystemClock, Signal,
     Hold, RenewalPlan, Renewer, RenewalTask, Block, Operations, Acquisition, RenewalRequest, RequestSender,
     RequestThreads, PendingRequest, Config, AcquireWait, PendingAcquisitions, Backoff, EventStream, LockReader,
     HoldEntry, HistoryReader,
     Leadership, LeadershipTracker, SseParser, Watch, Leader, ExclusiveOptions,
     ExclusiveFunctions, CallerActivity,
     Testing::ManualClock, Testing::FakeLocks, Testing::FakeLock, Testing::EventLog, Testing::FakeLockJson,
     Testing::FakeClient, Testing::FaultyTransport].each do |kind|
      methods = kind.instance_methods(false) + kind.private_instance_methods(false) + kind.singleton_methods(false)
      methods.map(&:to_s).grep_v(/__with|__without|RBS_TEST/).each do |name|
        assert_match(/(def|attr_\w+|alias) (self\??\.)?#{Regexp.escape(name.delete_suffix('='))}\b?/, signed,
                     "#{kind}##{name}")
      end
    end
  end

  # Only the arguments of a block may be untyped: those that the program or a framework passes to it.
  def test_no_public_signature_is_untyped
    hidden = false
    untyped = Dir[File.expand_path("../sig/{volcano_locks,testing,integrations}.rbs", __dir__)].flat_map do |file|
      File.readlines(file, chomp: true).select do |line|
        hidden = true if line.match?(/^\s*private$/)
        hidden = false if line.match?(/^\s*(class|module|interface) /)
        !hidden && line.gsub(/\{ \(.*?\) ->/, "").sub(/#.*/, "").match?(/\buntyped\b/)
      end
    end
    assert_equal [], untyped
  end
end
