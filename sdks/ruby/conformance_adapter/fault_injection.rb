# frozen_string_literal: true

module Conformance
  OPERATIONS = {
    %w[POST lease] => "acquire", %w[PATCH lease] => "renew", %w[DELETE lease] => "release",
    %w[GET lock] => "get", %w[DELETE lock] => "force_release"
  }.freeze
  STREAM = "stream"
  KINDS = [*OPERATIONS.values, STREAM].freeze
  ERROR_RESPONSES = {
    "answer_503" => [503, "lock_service_unavailable"], "answer_500" => [500, "internal"],
    "answer_429" => [429, "lock_rate_limited"], "answer_403" => [403, "missing_permission"],
    "answer_503_empty" => [503, nil]
  }.freeze
  RETRY_AFTER_STATUSES = [429, 503].freeze
  REAL_SECONDS_MAX = 60

  # The faults of a scenario, shared by all actors.
  class FaultScript
    Fault = Struct.new(:kind, :left, :of, :actor, :delay_ms, :retry_after_seconds, :fields)
    NONE = Fault.new("none")

    def initialize
      @mutex = Mutex.new
      @faults = []
    end

    # Add a fault, from the arguments of the verb `outage`.
    def add(args)
      fault = Fault.new(args.fetch("kind"), args.fetch("count", Float::INFINITY), args.fetch("of", KINDS),
                        args["actor"], args.fetch("delay_ms", 0), args.fetch("retry_after_seconds", 1),
                        args["answer"])
      @mutex.synchronize { @faults << fault }
    end

    # Remove all faults.
    def clear
      @mutex.synchronize { @faults.clear }
    end

    # The fault of this request, which uses it up.
    def next_fault(operation, actor)
      @mutex.synchronize do
        found = @faults.find do |one|
          one.left.positive? && one.of.include?(operation) && [nil, actor].include?(one.actor)
        end
        found.left -= 1 if found
        found || NONE
      end
    end
  end

  # A stream read in another thread until its connection is cut, while the calling thread waits on the clock.
  class CuttableStream
    def initialize(clock)
      @clock = clock
      @over = VolcanoLocks::Signal.new
      @cut = false
    end

    def cut
      @cut = true
      @over.set
    end

    # @return [VolcanoLocks::Response] when the stream has ended
    def run(&stream)
      thread = Thread.new do
        Thread.current.report_on_exception = false
        stream.call
      ensure
        @over.set
      end
      @clock.wait(Float::INFINITY, @over) until @over.set?
      raise Errno::ECONNRESET if @cut

      thread.value
    ensure
      thread.kill
    end
  end

  # One actor's transport: records what was sent and injects the scenario's faults. Delays wait on the clock.
  class ActorTransport
    SentRequest = Struct.new(:operation, :token, :request_id)

    def initialize(actor, inner, clock, faults)
      @actor = actor
      @inner = inner
      @clock = clock
      @faults = faults
      @mutex = Mutex.new
      @sent = []
      @streams = []
    end

    # The requests sent since the last call.
    def take_sent
      @mutex.synchronize { @sent.slice!(0..) }
    end

    def call(request)
      target = request.path.end_with?("/lease") ? "lease" : "lock"
      fault = fault_of(request, OPERATIONS.fetch([request.verb, target]))
      before(fault, request) || after(fault, served(fault, request))
    end

    def stream(request, &on_bytes)
      before(fault_of(request, STREAM), request) || follow(request, &on_bytes)
    end

    # Break the connections of all streams.
    def cut
      @mutex.synchronize { @streams.dup }.each(&:cut)
    end

    private

    def fault_of(request, operation)
      @mutex.synchronize { @sent << SentRequest.new(operation, request.token, request.request_id) }
      @faults.next_fault(operation, @actor)
    end

    def follow(request)
      stream = CuttableStream.new(@clock)
      @mutex.synchronize { @streams << stream }
      open_stream do |opened|
        stream.run do
          @inner.stream(request) do |bytes|
            yield bytes
            opened.call
          end
        end
      end
    ensure
      @mutex.synchronize { @streams.delete(stream) }
    end

    def open_stream(&work)
      @clock.is_a?(SharedClock) ? @clock.open_stream(&work) : yield(-> {})
    end

    # The response or error that replaces the server's; nil if the request continues.
    def before(fault, request)
      case fault.kind
      when *ERROR_RESPONSES.keys then error_response(fault)
      when "answer_page" then VolcanoLocks::Response.new(502, {}, "<html>Bad Gateway</html>")
      when "drop_before"
        raise VolcanoLocks::TransportError.new("no connection", request_sent: false, request_id: request.request_id)
      when "reset" then raise Errno::ECONNRESET
      when "hang_before" then wait(Float::INFINITY)
      when "delay_before" then wait(fault.delay_ms / 1000.0)
      end
    end

    def served(fault, request)
      response = forward(request)
      fault.kind == "duplicate" ? forward(request) : response
    end

    def forward(request)
      return @inner.call(request) unless @clock.is_a?(SharedClock)

      may_wait = !request.body.nil? && JSON.parse(request.body).key?("wait_seconds")
      @clock.send_request(may_wait) { @inner.call(with_real_timeout(request)) }
    end

    # The client's timeout is in seconds of the scenario's clock, which stands still while a busy server responds.
    def with_real_timeout(request)
      VolcanoLocks::Request.new(verb: request.verb, path: request.path, headers: request.headers, body: request.body,
                                timeout_seconds: REAL_SECONDS_MAX)
    end

    def after(fault, response)
      case fault.kind
      when "altered" then return altered(response, fault.fields)
      when "drop_after" then raise Errno::ECONNRESET
      when "hang_after" then wait(Float::INFINITY)
      when "delay_after" then wait(fault.delay_ms / 1000.0)
      end
      response
    end

    def altered(response, fields)
      body = JSON.generate(JSON.parse(response.body).merge(fields))
      VolcanoLocks::Response.new(response.status, response.headers, body)
    end

    def error_response(fault)
      status, code = ERROR_RESPONSES.fetch(fault.kind)
      return VolcanoLocks::Response.new(status, {}, "") if code.nil?

      headers = RETRY_AFTER_STATUSES.include?(status) ? { "retry-after" => fault.retry_after_seconds.to_s } : {}
      VolcanoLocks::Response.new(status, headers, JSON.generate({ error: "injected fault", code: code }))
    end

    def wait(seconds)
      until_ = @clock.now + seconds
      signal = VolcanoLocks::Signal.new
      @clock.wait(until_, signal) while @clock.now < until_
      nil
    end
  end
end
