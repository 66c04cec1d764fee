# frozen_string_literal: true

require "json"

module VolcanoLocks
  # One HTTP request, complete. A transport sends it: see {HttpTransport}.
  class Request
    include Discreet

    # @return [String] `POST`, `PATCH`, `DELETE` or `GET`
    attr_reader :verb
    # @return [String] below the API URL
    attr_reader :path
    # @return [Hash{String => String}] the service key and the owner token among them
    attr_reader :headers
    # @return [String, nil] JSON
    attr_reader :body
    # @return [Float] how long its sender waits for the answer
    attr_reader :timeout_seconds

    def initialize(verb:, path:, headers:, timeout_seconds:, body: nil)
      @verb = verb
      @path = path
      @headers = headers.freeze
      @body = body
      @timeout_seconds = timeout_seconds
      freeze
    end

    # @return [String, nil] the owner token: a secret
    def token
      headers["X-Volcano-Lock-Token"]
    end

    # @return [String] the id that the answer and the server's log carry
    def request_id
      headers.fetch("X-Volcano-Request-Id")
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{verb} #{path} #{request_id}>"
    end
  end

  # One HTTP answer, read to its end. `headers` has lower-case names.
  Answer = Struct.new(:status, :headers, :body)

  # Answers parsed before anything is believed.
  #
  # An answer that is not exactly what the wire promises is a failure, never a grant: a proxy's page with status 200 is
  # no lease. Dates may end in `Z` or an offset and have 0 to 9 digits of fraction; a fencing token above 2^53 - 1 is
  # refused, since another language would round it and lose its order (SDK-7).
  module Messages
    RETRY_AFTER_SECONDS_MAX = 3600
    DATE = /\A(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):?(\d\d))\z/
    private_constant :DATE

    module_function

    # @param text [String] an RFC 3339 instant
    # @return [Time] in UTC, exact to the nanosecond
    # @raise [ArgumentError, TypeError] for anything else
    def parse_date(text)
      raise TypeError, "a date must be text, got #{text.class}" unless text.is_a?(String)

      match = text.valid_encoding? ? DATE.match(text) : nil
      time = match && instant_of(match)
      return time if time

      raise ArgumentError, "not a date with a UTC offset: #{text[0, Arguments::SHOWN_CHARACTERS_MAX].inspect}"
    end

    # @return [String] `time` in UTC, with as many digits of fraction as it needs
    def date_text(time)
      digits = format("%09d", time.nsec).sub(/0{0,6}\z/, "")
      "#{time.getutc.strftime('%Y-%m-%dT%H:%M:%S')}.#{digits}Z"
    end

    # @return [Lease] what an acquire's or renew's success granted
    # @raise [ServerError] when the body does not say one
    def lease_from(answer, key:, token:, ttl_seconds:, deadline:, request_id:)
      expires_at, fencing_token = term_of(body_of(answer, request_id), answer, request_id)
      Lease.new(key: key, token: token, ttl_seconds: ttl_seconds, expires_at: expires_at,
                fencing_token: fencing_token, deadline: deadline)
    end

    # @return [LockState] what a read answered
    # @raise [ServerError] when the body does not say
    def state_from(answer, request_id:)
      body = body_of(answer, request_id)
      case body["held"]
      when false then LockState.new(held: false)
      when true
        expires_at, fencing_token = term_of(body, answer, request_id)
        LockState.new(held: true, expires_at: expires_at, fencing_token: fencing_token)
      else raise malformed(answer, "held is neither true nor false", request_id)
      end
    end

    # @return [VolcanoError] the error that any answer other than the expected success is raised as
    def refusal_from(answer, request_id:)
      told = parsed(answer.body)
      told = {} unless told.is_a?(Hash)
      code = told["code"].is_a?(String) ? told["code"] : nil
      message = told["error"].is_a?(String) && !told["error"].empty? ? shown(told["error"]) : nil
      Errors.class_for(answer.status, code).new(
        message || "HTTP #{answer.status} without a reason",
        status: answer.status, code: code, request_id: request_id,
        retry_after: retry_after(answer.headers["retry-after"])
      )
    end

    # @return [ServerError] for a success status whose body does not say what it must
    def malformed(answer, why, request_id)
      kind = shown(answer.headers["content-type"] || "no content type")
      message = "HTTP #{answer.status} is not an answer of a lock service: #{why} (#{kind})"
      ServerError.new(message, status: answer.status, request_id: request_id)
    end

    def instant_of(match)
      year, month, day, hour, minute, second = match.captures.first(6).map(&:to_i)
      nanoseconds = (match[7] || "").ljust(9, "0").to_i
      return nil unless hour < 24 && minute < 60 && second < 60

      time = Time.utc(year, month, day, hour, minute, second + Rational(nanoseconds, 1_000_000_000))
      # Time carries a 31st of February over into March.
      return nil unless time.month == month && time.day == day

      offset = offset_seconds(match)
      offset && (time - offset)
    rescue ArgumentError
      nil
    end

    def offset_seconds(match)
      return 0 if match[8]

      hours = match[10].to_i
      minutes = match[11].to_i
      return nil unless hours < 24 && minutes < 60

      (match[9] == "-" ? -1 : 1) * ((hours * 3600) + (minutes * 60))
    end

    # @return [Hash] the JSON object that the answer is
    # @raise [ServerError] if it is none
    def body_of(answer, request_id)
      body = parsed(answer.body)
      raise malformed(answer, "its body is not JSON", request_id) if body == :broken
      raise malformed(answer, "its body is not an object", request_id) unless body.is_a?(Hash)

      body
    end

    def term_of(body, answer, request_id)
      unless Arguments.safe_integer?(body["fencing_token"])
        why = "fencing_token is not an integer from 1 to #{Arguments::FENCING_TOKEN_MAX}"
        raise malformed(answer, why, request_id)
      end
      [parse_date(body["expires_at"]), body["fencing_token"]]
    rescue ArgumentError, TypeError
      raise malformed(answer, "expires_at is not a date", request_id), cause: nil
    end

    def parsed(text)
      text = text.dup.force_encoding(Encoding::UTF_8)
      text.valid_encoding? ? JSON.parse(text, freeze: true) : :broken
    rescue JSON::ParserError
      :broken
    end

    # Whole seconds; the date form, which the service never sends, counts as not told.
    def retry_after(text)
      return nil unless text && /\A[0-9]+\z/.match?(text)

      [text[0, 9].to_i, RETRY_AFTER_SECONDS_MAX].min
    end

    def shown(text)
      text.scrub("?")[0, Arguments::SHOWN_CHARACTERS_MAX].gsub(/[^[:print:]]/, "?")
    end

    private_class_method :instant_of, :offset_seconds, :term_of, :parsed, :retry_after, :shown
  end
end
