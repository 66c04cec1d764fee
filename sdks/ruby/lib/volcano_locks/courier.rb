# frozen_string_literal: true

module VolcanoLocks
  # Puts requests together, has them carried, and waits for the answer: at most the request's timeout, by the client's
  # clock, from before it is sent to the last byte of its answer.
  #
  # Nothing raised here holds an owner token or the service key, also when a proxy echoed them (SDK-8).
  class Courier
    USER_AGENT = "volcano-locks-ruby/#{VERSION}".freeze
    HIDDEN = "[hidden]"

    def initialize(config, clock, transport)
      @config = config
      @clock = clock
      @transport = transport
      @workers = Workers.new(transport)
    end

    # Send a request and wait for its answer. An interrupt of this thread drops the request, unless it is to be carried
    # `to_the_end`.
    #
    # @return [Answer]
    # @raise [TransportError] when none came in time
    def ask(verb, path, request_id:, timeout_seconds:, token: nil, ttl_seconds: nil, to_the_end: false)
      call = send_off(verb, path, request_id: request_id, timeout_seconds: timeout_seconds, token: token,
                                  ttl_seconds: ttl_seconds, to_the_end: to_the_end)
      over = false
      begin
        @clock.wait(call.until, call.signal) until call.done? || call.late?
        over = true
      ensure
        # A call that is late is dropped in any case, and one that is done has nothing left to drop.
        call.drop if over || !to_the_end
      end
      answer_of(call)
    end

    # Send a request without waiting. The block is told, in another thread, that it is over; `drop` it when it is late.
    #
    # @return [Call]
    def send_off(verb, path, request_id:, timeout_seconds:, token: nil, ttl_seconds: nil, to_the_end: false,
                 &on_over)
      if timeout_seconds <= 0
        raise TransportError.new("no time left to ask", request_sent: false, request_id: request_id)
      end

      until_ = @clock.now + timeout_seconds
      request = request_for(verb, path, request_id, timeout_seconds, token, ttl_seconds)
      call = Call.new(request, until_, @clock, to_the_end: to_the_end, &on_over)
      @clock.watch(call)
      @workers.submit(call)
      call
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

    # End the threads and the connections.
    def close
      @workers.close
      @transport.close if @transport.respond_to?(:close)
    end

    private

    def request_for(verb, path, request_id, timeout_seconds, token, ttl_seconds)
      headers = {
        "Authorization" => "Bearer #{@config.service_key}",
        "Accept" => "application/json",
        "Accept-Encoding" => "identity",
        "User-Agent" => USER_AGENT,
        "X-Volcano-Request-Id" => request_id,
        "X-Volcano-Lock-Holder" => @config.holder_label
      }
      headers["X-Volcano-Lock-Token"] = token if token
      headers["Content-Type"] = "application/json" if ttl_seconds
      body = ttl_seconds ? JSON.generate({ ttl_seconds: ttl_seconds }) : nil
      Request.new(verb: verb, path: path, headers: headers, body: body, timeout_seconds: timeout_seconds)
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
        shown.gsub(secret.b, HIDDEN)
      end.force_encoding(Encoding::UTF_8).scrub("?")
    end
  end
end
