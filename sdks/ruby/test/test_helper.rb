# frozen_string_literal: true

# The tests read UTF-8 whatever the locale of the machine is; the client itself does not depend on it.
Encoding.default_external = Encoding::UTF_8

# The signatures in sig/ are checked at run time: every call in the suite that does not fit its signature fails.
LIBRARIES = %w[json logger monitor net-http openssl securerandom socket uri].freeze
ENV["RBS_TEST_TARGET"] ||= "VolcanoLocks::*"
# The check puts a block of its own around each block, which then has no names of arguments any more.
ENV["RBS_TEST_SKIP"] ||= "::VolcanoLocks::ExclusiveFunctions"
ENV["RBS_TEST_RAISE"] ||= "true"
ENV["RBS_TEST_LOGLEVEL"] ||= "error"
ENV["RBS_TEST_OPT"] ||= "#{LIBRARIES.map { |name| "-r #{name}" }.join(' ')} -I #{File.expand_path('../sig', __dir__)}"
require "rbs/test/setup"

require "minitest/autorun"
require "timeout"
require "volcano_locks/testing"

# A test looks at how its threads end; the client's own say nothing anyway.
Thread.report_on_exception = false

# What the tests share.
module TestHelper
  include VolcanoLocks
  include VolcanoLocks::Testing::Faults

  KEY = "nightly"
  TOKEN = "1111aaaa-2222-4333-8444-5555555555ff"
  REQUEST_ID = "99999999-8888-4777-a666-555555555555"
  # Enough real time for anything that has to happen at once.
  PATIENCE_SECONDS = 20

  class BodyError < StandardError; end

  # A fake server, and a client on the other side of a network that fails by script.
  class Fixture
    include VolcanoLocks
    include VolcanoLocks::Testing::Faults

    attr_reader :clock, :server, :network, :client

    def initialize(script = [], otherwise: Pass.new, **options)
      @clock = Testing::ManualClock.new
      @server = Testing::FakeLocks.new(@clock)
      @network = Testing::FaultyTransport.new(@server, @clock, script: script, otherwise: otherwise)
      @client = Client.new(api_url: "http://fake.invalid", service_key: "sk-secret", clock: @clock,
                           transport: @network, **options)
    end

    def locks
      client.locks
    end

    # A stranger's view of the lock.
    def others
      @others ||= @server.client.locks
    end

    def held?(key = KEY)
      others.get(key).held?
    end

    def sent
      network.seen.map { |request| [request.verb, request.path.end_with?("/lease")] }
    end
  end

  POST = ["POST", true].freeze
  PATCH = ["PATCH", true].freeze
  DELETE = ["DELETE", true].freeze

  def respond(status, code = nil, headers: {})
    Respond.new(status, JSON.generate({ error: "told so", code: code }), headers)
  end

  def unavailable(retry_after: "1")
    respond(503, "lock_service_unavailable", headers: { "retry-after" => retry_after })
  end

  # AcquireWait, in real time but no longer than need be, for what another thread is about to do.
  def eventually
    give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_SECONDS
    until (result = yield)
      flunk "it never happened" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up
      sleep 0.001
    end
    result
  end

  # A thread whose failure is the test's to look at.
  def quiet_thread
    Thread.new { yield } # rubocop:disable Style/ExplicitBlockArgument
  end

  def without_warnings
    told = []
    before = VolcanoLocks.logger
    logger = Object.new
    logger.define_singleton_method(:warn) { |message| told << message }
    VolcanoLocks.logger = logger
    yield
    told
  ensure
    VolcanoLocks.logger = before
  end
end
