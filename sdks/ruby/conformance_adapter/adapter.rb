# frozen_string_literal: true

module Conformance
  # Runs the verbs of one scenario, each in its own thread. While a verb waits, the adapter moves the clock to the next
  # instant that a thread waits for, because nothing else would move it.
  class Adapter
    include Results
    include LeaseVerbs
    include FeatureVerbs

    VERBS = %w[open client now_ms advance_ms pause_ms acquire renew release get force_release race wait waited
               hang_up view list history enter guard exit watch watched lead leading resign call nest
               close].freeze

    def initialize(json_lines)
      @json_lines = json_lines
      @clients = {}
      @leases = {}
      @blocks = {}
      @waits = {}
      @watches = {}
      @campaigns = {}
    end

    # @return [Hash] the verb's result, or the failure that the client raised
    def do(verb, args)
      raise ArgumentError, "unknown verb #{verb}" unless VERBS.include?(verb)

      public_send(verb, args)
    rescue VolcanoLocks::VolcanoError => e
      failure(e)
    rescue BodyError => e
      { error: "body", **attached_to(e) }
    rescue BodyCancelled => e
      { error: "cancelled", **attached_to(e) }
    end

    def open(args)
      @clock = args["fake"] ? VolcanoLocks::Testing::ManualClock.new : SharedClock.new(@json_lines)
      fake = VolcanoLocks::Testing::FakeLocks
      @options = { clock: @clock, service_key: args.fetch("service_key", fake::SERVICE_KEY) }
      @options.update(api_url: fake::URL, transport: fake.new(@clock)) if args["fake"]
      {}
    end

    # Create the client of an actor.
    def client(args)
      address = args.slice("api_url").transform_keys(&:to_sym)
      @clients[args.fetch("actor")] = VolcanoLocks::Client.new(**@options, **address, holder: args.fetch("actor"))
      {}
    end

    def now_ms(_args)
      { now_ms: ms_of(@clock.utc_now) }
    end

    def advance_ms(args)
      @clock.advance(args.fetch("value") / 1000.0)
      {}
    end

    def pause_ms(args)
      @clock.jump(args.fetch("value") / 1000.0)
      @clock.settle
      {}
    end

    def close(_args)
      @clients.each_value(&:close)
      [*@blocks.values, *@campaigns.values].each { |one| one.task.abort }
      {}
    end

    private

    def locks(args)
      @clients.fetch(args.fetch("actor")).locks
    end

    def actor_and_key(args)
      args.values_at("actor", "key")
    end

    # Run the work in a thread, while time passes, and return its value.
    def blocking(&work)
      task = Task.new(@clock, &work)
      until_over { task.over? }
      task.result
    end

    def until_over
      loop do
        @clock.settle
        return if yield
        raise "no thread waits for an instant, so the verb would never end" if @clock.next_due == Float::INFINITY

        @clock.advance(@clock.next_due - @clock.now)
      end
    end
  end
end
