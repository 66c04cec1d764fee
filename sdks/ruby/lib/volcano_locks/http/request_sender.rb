# frozen_string_literal: true

module VolcanoLocks
  # Builds requests, has them sent, and waits for their responses. The timeout covers the whole request by the client's
  # clock, from before it is sent to the last byte of the response.
  #
  # No error raised here contains an owner token or the service key, even if a proxy echoed them (SDK-8).
  class RequestSender
    USER_AGENT = "volcano-locks-ruby/#{VERSION}".freeze
    HIDDEN = "[hidden]"
    STOP_POLL_SECONDS = 0.2
    CLOSING_SECONDS_MAX = 4.0
    NEVER = { Object => :never }.freeze
    private_constant :NEVER

    # @return [PendingAcquisitions] those that `close` waits for
    attr_reader :pending_acquisitions

    def initialize(config, clock, transport)
      @config = config
      @clock = clock
      @transport = transport
      @threads = RequestThreads.new(transport, RequestThreads::THREADS_MAX)
      # Waiting requests have their own threads, so that a thousand waits do not delay a renewal.
      @long_threads = RequestThreads.new(transport, RequestThreads::LONG_THREADS_MAX)
      # Event streams have their own threads too, so that a thousand waits do not silence a watch.
      @stream_threads = RequestThreads.new(transport, RequestThreads::LONG_THREADS_MAX)
      @pending_acquisitions = PendingAcquisitions.new
      @quota_scarce = false
      @closing = Signal.new
      @fixed_headers = { "Authorization" => "Bearer #{config.service_key}", "Accept" => "application/json",
                         "Accept-Encoding" => "identity", "User-Agent" => USER_AGENT }.freeze
    end

    # Send a request and wait for its response. An interrupt of this thread cancels the request unless it `must_finish`.
    # A `stop` that returns true cancels it and raises {Stopped}.
    #
    # @return [Response]
    # @raise [TransportError] if no response arrived in time
    def send_request(verb, path, stop: nil, wait_seconds: nil, **options)
      pending = new_pending(verb, path, wait_seconds: wait_seconds, **options)
      connection = wait_seconds || stop ? nil : idle_connection
      connection ? run_here(pending, connection) : run_in_thread(pending, threads_for(wait_seconds), stop)
      response_of(pending)
    end

    # Send a request without waiting. The block is called in another thread when the request is over. The caller must
    # cancel the request when it has timed out.
    #
    # @return [PendingRequest]
    def start_request(verb, path, wait_seconds: nil, **options, &on_over)
      submit(new_pending(verb, path, wait_seconds: wait_seconds, **options, &on_over), threads_for(wait_seconds))
    end

    # Open an event stream, after `last_id` if that is known. Cancel it when done.
    #
    # @return [EventStream]
    def open_event_stream(path, last_id:, silence_seconds_max:)
      headers = { "Accept" => "text/event-stream", "Last-Event-ID" => last_id }
      request = request_for("GET", path, Arguments.new_uuid, silence_seconds_max, headers, {})
      submit(EventStream.new(request, @clock), @stream_threads)
    end

    # Pause before the next request of a wait or a watch. Closing the client or `stop` ends the pause with an error.
    def pause(seconds, stop: nil)
      until_ = @clock.now + seconds
      wait_until(until_, @closing, stop) until closing? || @clock.now >= until_
      raise VolcanoError, RequestThreads::CLOSED if closing?
    end

    # @return [Boolean] whether half of the project's quota is spent, by the last response
    def quota_scarce?
      @quota_scarce
    end

    # @return [Boolean] whether the client is closed or being closed
    def closing?
      @closing.set?
    end

    # @return [Response] of a request that is done or timed out
    # @raise [TransportError] if no response arrived in time
    def response_of(pending)
      request = pending.request
      outcome = pending.timed_out? ? nil : pending.outcome
      case outcome
      when Response then noted(without_secrets(outcome, request))
      when VolcanoError then raise outcome.of_request(request), outcome.message, caller # in the caller's thread
      when Exception then raise transport_error(request, "#{outcome.class}: #{outcome.message}"), cause: nil
      when nil then raise transport_error(request, "no response within #{request.timeout_seconds.round(3)} seconds")
      else raise transport_error(request, "the transport returned a #{outcome.class}, not a Response")
      end
    end

    # End the threads and the connections. Cancels requests in progress, except those that must finish, and waits for
    # the releases that follow. Bounded in real time. Repeating it is harmless.
    def close
      @closing.set
      deadline = RealTime.seconds + CLOSING_SECONDS_MAX
      all = [@threads, @long_threads, @stream_threads]
      all.each(&:cancel_optional)
      @pending_acquisitions.wait(deadline - RealTime.seconds)
      all.each { |threads| threads.close(deadline - RealTime.seconds) }
      @transport.close if @transport.respond_to?(:close)
    end

    private

    def new_pending(verb, path, request_id:, timeout_seconds:, token: nil, ttl_seconds: nil, wait_seconds: nil,
                    reason: nil, must_finish: false, &on_over)
      if timeout_seconds <= 0
        raise TransportError.new("no time left to send the request", request_sent: false, request_id: request_id)
      end

      deadline = @clock.now + timeout_seconds
      body = { ttl_seconds: ttl_seconds, wait_seconds: wait_seconds }.compact
      headers = { "X-Volcano-Lock-Token" => token, "X-Volcano-Reason" => reason && percent_encoded(reason) }
      request = request_for(verb, path, request_id, timeout_seconds, headers, body)
      PendingRequest.new(request, deadline, @clock, must_finish: must_finish, &on_over)
    end

    def threads_for(wait_seconds)
      wait_seconds ? @long_threads : @threads
    end

    # An open connection for a request in this thread. Nil if another thread must send the request, because no
    # connection is open or this thread is being killed.
    def idle_connection
      return nil if Thread.current.status == "aborting"

      @transport.idle_connection if @transport.respond_to?(:idle_connection)
    end

    # Run the request in this thread. If this thread is interrupted, a request that must finish is sent again by another
    # one; a release may arrive twice.
    def run_here(pending, connection)
      over = false
      @clock.watch(pending)
      @threads.run_here(pending, connection)
      over = true
    rescue VolcanoError
      over = true
      raise unless pending.cancelled? || pending.timed_out?
    ensure
      Thread.handle_interrupt(NEVER) { send_again(pending) } if !over && pending.must_finish?
    end

    def send_again(pending)
      @threads.submit(pending.again)
    rescue VolcanoError, ThreadError # the client is closed, or the process ends
      nil
    end

    def run_in_thread(pending, threads, stop)
      over = false
      submit(pending, threads)
      wait_until(pending.deadline, pending.signal, stop) until pending.done? || pending.timed_out?
      over = true
    ensure
      # This cancels a request that timed out, and does nothing to one that is done.
      pending.cancel if over || !pending.must_finish?
    end

    # Remember whether half of the quota is spent. A limit of 0 or none is no limit.
    def noted(response)
      limit, remaining = response.headers.values_at("x-ratelimit-limit", "x-ratelimit-remaining").map(&:to_i)
      @quota_scarce = limit.positive? && remaining * 2 <= limit
      response
    end

    # Hand the request to a thread. If it is refused, or this thread is interrupted, cancel it.
    def submit(pending, threads)
      submitted = false
      @clock.watch(pending)
      threads.submit(pending)
      submitted = true
      pending
    ensure
      pending.cancel unless submitted
    end

    def wait_until(until_, signal, stop)
      return @clock.wait(until_, signal) if stop.nil?
      raise Stopped, "`stop` returned true" if stop.call

      @clock.wait([until_, @clock.now + STOP_POLL_SECONDS].min, signal)
    end

    def request_for(verb, path, request_id, timeout_seconds, more_headers, body)
      headers = @fixed_headers.dup
      headers["X-Volcano-Request-Id"] = request_id
      headers["X-Volcano-Lock-Holder"] = @config.holder_label
      more_headers.each { |name, value| headers[name] = value unless value.nil? }
      headers["Content-Type"] = "application/json" unless body.empty?
      Request.new(verb: verb, path: path, headers: headers, timeout_seconds: timeout_seconds,
                  body: body.empty? ? nil : JSON.generate(body))
    end

    def percent_encoded(text)
      text.b.gsub(/[^A-Za-z0-9._~-]/) { |byte| format("%%%02X", byte.ord) }
    end

    # An error may show the body of a refusal, and any header.
    def without_secrets(response, request)
      return response if response.status < 300 && response.headers["content-type"] == "application/json"

      headers = response.headers.transform_values { |value| hide_secrets(value, request) }
      body = response.status < 300 ? response.body : hide_secrets(response.body, request)
      Response.new(response.status, headers, body, response.through, response.url)
    end

    def transport_error(request, why)
      message = "#{request.verb} #{request.path}: #{hide_secrets(why, request)}"
      TransportError.new(message, request_id: request.request_id)
    end

    def hide_secrets(text, request)
      [@config.service_key, request.token].compact.reduce(text.b) do |shown, secret|
        shown.gsub(/#{Regexp.escape(secret.b)}/i, HIDDEN)
      end.force_encoding(Encoding::UTF_8).scrub("?")
    end
  end
end
