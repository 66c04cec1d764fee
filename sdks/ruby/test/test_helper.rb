# frozen_string_literal: true

# The tests read UTF-8 in any locale; the client itself does not depend on it.
Encoding.default_external = Encoding::UTF_8

# Checks the signatures in sig/ at run time: a call that does not match its signature fails the test.
LIBRARIES = %w[json logger monitor net-http openssl securerandom socket uri].freeze
ENV["RBS_TEST_TARGET"] ||= "VolcanoLocks::*"
# The check wraps each block, which hides the names of the block's parameters.
ENV["RBS_TEST_SKIP"] ||= "::VolcanoLocks::ExclusiveFunctions"
ENV["RBS_TEST_RAISE"] ||= "true"
ENV["RBS_TEST_LOGLEVEL"] ||= "error"
ENV["RBS_TEST_OPT"] ||= "#{LIBRARIES.map { |name| "-r #{name}" }.join(' ')} -I #{File.expand_path('../sig', __dir__)}"
require "rbs/test/setup"

require "minitest/autorun"
require "timeout"
require "volcano_locks/testing"

# Failures are part of the tests.
VolcanoLocks.logger = nil
# Tests check how their threads end.
Thread.report_on_exception = false

# Ends the run if one test hangs: its name and the stacks of all threads say where.
module HangWatch
  LIMIT_SECONDS = 240

  def run
    watch = Thread.new do
      sleep LIMIT_SECONDS
      warn "#{self.class}##{name} has not ended within #{LIMIT_SECONDS} s"
      Thread.list.each { |thread| warn(thread.inspect, *thread.backtrace) }
      exit!(1)
    end
    super
  ensure
    watch.kill.join
  end
end
Minitest::Test.prepend(HangWatch)

# Shared by all tests.
module TestHelper
  include VolcanoLocks
  include VolcanoLocks::Testing::Faults

  LIBRARY = File.expand_path("../lib", __dir__)
  KEY = "nightly"
  TOKEN = "1111aaaa-2222-4333-8444-5555555555ff"
  REQUEST_ID = "99999999-8888-4777-a666-555555555555"
  # Limit of real time for anything that should happen at once.
  PATIENCE_SECONDS = 20

  class BodyError < StandardError; end

  # A fake server, and a client behind a transport that injects faults by script.
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

    # Another client's access to the locks.
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
    Respond.new(status, JSON.generate({ error: "message from the server", code: code }), headers)
  end

  def unavailable(retry_after: "1")
    respond(503, "lock_service_unavailable", headers: { "retry-after" => retry_after })
  end

  # Wait, in real time, until the block returns true because of another thread.
  def eventually
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_SECONDS
    until (result = yield)
      flunk "the expected state was not reached" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      sleep 0.001
    end
    result
  end

  # A thread whose failure the test checks.
  def quiet_thread
    Thread.new { yield } # rubocop:disable Style/ExplicitBlockArgument
  end

  # The warnings that the block logs.
  def collect_warnings
    warnings = []
    before = VolcanoLocks.logger
    logger = Object.new
    logger.define_singleton_method(:warn) { |message| warnings << message }
    VolcanoLocks.logger = logger
    yield
    VolcanoLocks.module_eval { const_get(:Log) }.drain
    warnings
  ensure
    VolcanoLocks.logger = before
  end
end
