# frozen_string_literal: true

require "json"

module VolcanoLocks
  # One complete HTTP request, sent by a transport such as {HttpTransport}.
  class Request
    include Redacted

    # @return [String] `POST`, `PATCH`, `DELETE` or `GET`
    attr_reader :verb
    # @return [String] relative to the API URL
    attr_reader :path
    # @return [Hash{String => String}] includes the service key and the owner token
    attr_reader :headers
    # @return [String, nil] JSON
    attr_reader :body
    # @return [Float] how long the client waits for the response
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

    # @return [String] the id in the response and in the server's log
    def request_id
      headers.fetch("X-Volcano-Request-Id")
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{verb} #{path} #{request_id}>"
    end
  end

  # One complete HTTP response. The names in `headers` are lower-case. `through` names the proxy for errors, as in
  # " through the proxy cache:3128"; nil without one. `url` is what was asked, for errors; nil if it does not matter.
  Response = Struct.new(:status, :headers, :body, :through, :url)

  # Parses and checks responses.
  #
  # A response that breaks the protocol is an error, never a grant: a proxy's page with status 200 is not a lease. Dates
  # may end in `Z` or an offset and have 0 to 9 fractional digits. A fencing token above 2^53 - 1 is refused, because
  # another language would round it and lose its order (SDK-7).
  module Messages
    RETRY_AFTER_SECONDS_MAX = 3600
    DATE = /\A(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):?(\d\d))\z/
    HOLDER = /\A[!-~]{1,128}\z/
    NAMING_THE_URL = [401, 404].freeze # of an API URL, or a service key, that is of another service (SDK-9)
    private_constant :DATE, :HOLDER, :NAMING_THE_URL

    module_function

    # @param text [String] an RFC 3339 instant
    # @return [Time] in UTC, exact to the nanosecond
    # @raise [ArgumentError, TypeError] if `text` is not such an instant
    def parse_date(text)
      raise TypeError, "a date must be a String, got #{text.class}" unless text.is_a?(String)

      match = Arguments.matches?(DATE, text) ? DATE.match(text) : nil
      time = match && instant_of(match)
      return time if time

      raise ArgumentError, "not a date with a UTC offset: #{Arguments.shown(text)}"
    end

    # @return [String] `time` in UTC, with as many fractional digits as it needs
    def date_text(time)
      digits = format("%09d", time.nsec).sub(/0{0,6}\z/, "")
      "#{time.getutc.strftime('%Y-%m-%dT%H:%M:%S')}.#{digits}Z"
    end

    # @return [Lease] the lease that an acquire or renew granted
    # @raise [ServerError] if the body does not describe a lease
    def lease_from(response, key:, token:, ttl_seconds:, deadline:, request_id:)
      expires_at, fencing_token = expiry_and_token(body_of(response, request_id), response, request_id)
      Lease.new(key: key, token: token, ttl_seconds: ttl_seconds, expires_at: expires_at,
                fencing_token: fencing_token, deadline: deadline)
    end

    # @return [LockState] the state that a `get` read
    # @raise [ServerError] if the body does not describe a state
    def state_from(response, request_id:)
      body = body_of(response, request_id)
      case body["held"]
      when false then LockState.new(held: false)
      when true
        expires_at, fencing_token = expiry_and_token(body, response, request_id)
        LockState.new(held: true, expires_at: expires_at, fencing_token: fencing_token)
      else raise malformed(response, "held is neither true nor false", request_id)
      end
    end

    # @return [VolcanoError] the error that an unsuccessful response reports; `key` is the lock of an acquire
    def error_from(response, request_id:, key: nil)
      body = parsed(response.body)
      body = {} unless body.is_a?(Hash)
      code = body["code"].is_a?(String) ? body["code"] : nil
      return lock_held(response, body, key, request_id) if key && response.status == 409 && code == LOCK_HELD

      Errors.class_for(response.status, code).new(
        reason(response, body["error"]),
        status: response.status, code: code, request_id: request_id,
        retry_after: retry_after(response.headers["retry-after"])
      )
    end

    # The sentence of an error: the server's if it sent one; with the URL where that may be the wrong one (SDK-9).
    def reason(response, sent)
      message = sent.is_a?(String) && !sent.empty? ? printable(sent) : nil
      message ||= "HTTP #{response.status} without an error message#{response.through}"
      response.url && NAMING_THE_URL.include?(response.status) ? "#{message} (#{response.url})" : message
    end

    # The refusal of an acquire. A field of the current lease that is missing or malformed is unknown (SDK-9).
    def lock_held(response, body, key, request_id)
      holder, date, fencing_token = body.values_at("holder", "expires_at", "fencing_token")
      holder = nil unless holder.is_a?(String) && HOLDER.match?(holder)
      fencing_token = nil unless Arguments.safe_integer?(fencing_token)
      expires_at = begin
        parse_date(date)
      rescue ArgumentError, TypeError
        nil
      end
      LockHeldError.new(held_message(key, holder, expires_at, fencing_token),
                        key: key, holder: holder, expires_at: expires_at, fencing_token: fencing_token,
                        status: 409, code: LOCK_HELD, request_id: request_id,
                        retry_after: retry_after(response.headers["retry-after"]))
    end

    def held_message(key, holder, expires_at, fencing_token)
      until_ = expires_at && " until #{date_text(expires_at)} unless it is renewed"
      token = fencing_token && " (fencing token #{fencing_token})"
      "the lock #{key.inspect} is held by #{holder || 'another owner'}#{until_}#{token}: try again later, or pass wait"
    end

    # @return [ServerError] for a success status with an invalid body
    def malformed(response, why, request_id)
      content_type = printable(response.headers["content-type"] || "no content type")
      message = "HTTP #{response.status}#{response.through} is not a response of a lock service: " \
                "#{why} (#{content_type})"
      ServerError.new(message, status: response.status, request_id: request_id)
    end

    # @return [Boolean] whether the response has this media type, with any parameters, in any case
    def media_type?(headers, media_type)
      headers["content-type"].to_s[/\A[^;\s]*/].casecmp?(media_type)
    end

    def instant_of(match)
      year, month, day, hour, minute, second = match.captures.first(6).map(&:to_i)
      nanoseconds = (match[7] || "").ljust(9, "0").to_i
      return nil unless hour < 24 && minute < 60 && second < 60

      time = Time.utc(year, month, day, hour, minute, second + Rational(nanoseconds, 1_000_000_000))
      # Time turns a 31st of February into a day in March.
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

    # @return [Hash] the JSON object in the response's body
    # @raise [ServerError] if the body is not a JSON object
    def body_of(response, request_id)
      body = parsed(response.body)
      raise malformed(response, "its body is not JSON", request_id) if body == :invalid
      raise malformed(response, "its body is not an object", request_id) unless body.is_a?(Hash)

      body
    end

    def expiry_and_token(body, response, request_id)
      unless Arguments.safe_integer?(body["fencing_token"])
        why = "fencing_token is not an integer from 1 to #{Arguments::FENCING_TOKEN_MAX}"
        raise malformed(response, why, request_id)
      end
      [parse_date(body["expires_at"]), body["fencing_token"]]
    rescue ArgumentError, TypeError
      raise malformed(response, "expires_at is not a date", request_id), cause: nil
    end

    def parsed(text)
      text = text.dup.force_encoding(Encoding::UTF_8)
      text.valid_encoding? ? JSON.parse(text, freeze: true) : :invalid
    rescue JSON::ParserError
      :invalid
    end

    # Whole seconds. The date form, which the service never sends, counts as absent.
    def retry_after(text)
      return nil unless text && /\A[0-9]+\z/.match?(text)

      [text[0, 9].to_i, RETRY_AFTER_SECONDS_MAX].min
    end

    def printable(text)
      text.scrub("?")[0, Arguments::SHOWN_CHARACTERS_MAX].gsub(/[^[:print:]]/, "?")
    end

    private_class_method :lock_held, :held_message, :instant_of, :offset_seconds, :expiry_and_token, :parsed,
                         :retry_after, :printable
  end
end
