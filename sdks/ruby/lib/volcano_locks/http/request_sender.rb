# frozen_string_literal: true

module VolcanoLocks
  # Puts requests together, has them carried, and waits for the answer: at most the request's timeout, by the client's
  # clock, from before it is sent to the last byte of its answer.
  #
  # Nothing raised here holds an owner token or the service key, also when a proxy echoed them (SDK-8).
  class Courier
    USER_AGENT = "volcano-locks-ruby/#{VERSION}".freeze
    HIDDEN = "[hidden]"
    STOP_LOOK_SECONDS = 0.2
    CLOSING_SECONDS_MAX = 4.0

    # @return [UnderWay] what `close` waits for
    attr_reader :under_way

    def initialize(config, clock, transport)
      @config = config
      @clock = clock
      @transport = transport
      @workers = Workers.new(transport, Workers::THREADS_MAX)
      # Those that wait have threads of their own: a thousand of them must not keep one renewal waiting.
      @long_workers = Workers.new(transport, Workers::LONG_THREADS_MAX)
      @under_way = UnderWay.new
      @closing = Signal.new
    end

    # Send a request and wait for its answer. An interrupt of this thread drops the request, unless it is to be carried
    # `to_the_end`. So does a `stop` that says yes, which raises {Stopped}.
    #
    # @return [Answer]
    # @raise [TransportError] when none came in time
    def ask(verb, path, to_the_end: false, stop: nil, **options)
      call = nil
      over = false
      begin
        call = send_off(verb, path, to_the_end: to_the_end, **options)
        wait_until(call.until, call.signal, stop) until call.done? || call.late?
        over = true
      ensure
        # A call that is late is dropped in any case, and one that is done has nothing left to drop.
        call&.drop if over || !to_the_end
      end
      answer_of(call)
    end

    # Send a request without waiting. The block is told, in another thread, that it is over; `drop` it when it is late.
    #
    # @return [Call]
    def send_off(verb, path, request_id:, timeout_seconds:, token: nil, ttl_seconds: nil, wait_seconds: nil,
                 to_the_end: false, &on_over)
      if timeout_seconds <= 0
        raise TransportError.new("no time left to ask", request_sent: false, request_id: request_id)
      end

      until_ = @clock.now + timeout_seconds
      body = { ttl_seconds: ttl_seconds, wait_seconds: wait_seconds }.compact
      request = request_for(verb, path, request_id, timeout_seconds, { "X-Volcano-Lock-Token" => token }, body)
      submitted(Call.new(request, until_, @clock, to_the_end: to_the_end, &on_over),
                wait_seconds ? @long_workers : @workers)
    end

    # Begin to hear an event stream, from behind `last_id` where that is known. `drop` it in the end.
    #
    # @return [Stream]
    def listen(path, last_id:, silence_seconds_max:)
      headers = { "Accept" => "text/event-stream", "Last-Event-ID" => last_id }
      request = request_for("GET", path, Arguments.new_uuid, silence_seconds_max, headers, {})
      submitted(Stream.new(request, @clock), @long_workers)
    end

    # Rest between two requests of something that goes on. The client's closing ends it, and so does `stop`.
    def rest(seconds, stop: nil)
      until_ = @clock.now + seconds
      wait_until(until_, @closing, stop) until closing? || @clock.now >= until_
      raise VolcanoError, Workers::CLOSED if closing?
    end

    # @return [Boolean] whether the client is closed, or about to be
    def closing?
      @closing.set?
    end

    # @return [Answer] of a call that is done or late
    # @raise [TransportError] when none came, or none in time
    def answer_of(call)
      outcome = call.late? ? nil : call.outcome
      case outcome
      when Answer then without_secrets(outcome, call.request)
      when VolcanoError then raise outcome, outcome.message, caller # where it was asked, not where it was sent
      when Exception then raise failure(call.request, "#{outcome.class}: #{outcome.message}"), cause: nil
      when nil then raise failure(call.request, "no answer within #{call.request.timeout_seconds.round(3)} seconds")
      else raise failure(call.request, "the transport gave no Answer but #{outcome.class}")
      end
    end

    # End the threads and the connections. Requests under way are cut short, but for those that go to the end; what was
    # given up by that is given back first. All of this is bounded in real time. Idempotent.
    def close
      @closing.set
      give_up = real_seconds + CLOSING_SECONDS_MAX
      both = [@workers, @long_workers]
      both.each(&:end_what_can_be_cut_short)
      @under_way.wait(give_up - real_seconds)
      both.each { |workers| workers.close(give_up - real_seconds) }
      @transport.close if @transport.respond_to?(:close)
    end

    private

    # The call, on its way. One that was refused or interrupted before its caller got it is over.
    def submitted(call, workers)
      begun = false
      @clock.watch(call)
      workers.submit(call)
      begun = true
      call
    ensure
      call.drop unless begun
    end

    def wait_until(until_, signal, stop)
      return @clock.wait(until_, signal) if stop.nil?
      raise Stopped, "told to stop" if stop.call

      @clock.wait([until_, @clock.now + STOP_LOOK_SECONDS].min, signal)
    end

    def real_seconds
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def request_for(verb, path, request_id, timeout_seconds, more_headers, body)
      headers = {
        "Authorization" => "Bearer #{@config.service_key}",
        "Accept" => "application/json",
        "Accept-Encoding" => "identity",
        "User-Agent" => USER_AGENT,
        "X-Volcano-Request-Id" => request_id,
        "X-Volcano-Lock-Holder" => @config.holder_label,
        **more_headers.compact
      }
      headers["Content-Type"] = "application/json" unless body.empty?
      Request.new(verb: verb, path: path, headers: headers, timeout_seconds: timeout_seconds,
                  body: body.empty? ? nil : JSON.generate(body))
    end

    def without_secrets(answer, request)
      Answer.new(answer.status, answer.headers, hidden(answer.body, request))
    end

    def failure(request, told)
      message = "#{request.verb} #{request.path}: #{hidden(told, request)}"
      TransportError.new(message, request_id: request.request_id)
    end

    def hidden(text, request)
      [@config.service_key, request.token].compact.reduce(text.b) do |shown, secret|
        shown.gsub(/#{Regexp.escape(secret.b)}/i, HIDDEN)
      end.force_encoding(Encoding::UTF_8).scrub("?")
    end
  end
end
