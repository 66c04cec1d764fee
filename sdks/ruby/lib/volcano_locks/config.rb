# frozen_string_literal: true

require "socket"
require "uri"

module VolcanoLocks
  # The client's settings, checked: arguments first, then `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`. `TypeError` or
  # `ArgumentError` names the setting that is missing or wrong. `inspect` never shows the service key (SDK-8).
  class Config
    include Redacted

    API_URL_VARIABLE = "VOLCANO_API_URL"
    API_URL = "http://127.0.0.1:7420"
    SERVICE_KEY_VARIABLE = "VOLCANO_SERVICE_KEY"
    INSIDE_RUN_VARIABLE = "VOLCANO_LOCK_FENCING_TOKEN" # set by `volcano-locks run`
    HOLDER_CHARACTERS_MAX = 128
    TIMEOUT_SECONDS = 10.0
    VISIBLE = /\A[!-~]+\z/
    private_constant :VISIBLE

    attr_reader :api_url, :service_key, :timeout_seconds

    def initialize(api_url:, service_key:, timeout_seconds:, holder:)
      @api_url = checked_url(setting("api_url", api_url, API_URL_VARIABLE, API_URL))
      @service_key = checked_service_key(setting("service_key", service_key, SERVICE_KEY_VARIABLE))
      @timeout_seconds = checked_timeout(timeout_seconds)
      @holder = holder.nil? ? nil : checked_holder(holder)
      @default_holders = {}
      freeze
    end

    # @return [String] the label that people see; defaults to `host/pid` of the current process
    def holder_label
      @holder || (@default_holders[Process.pid] ||= default_holder)
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{api_url}>"
    end

    private

    def default_holder
      tail = "/#{Process.pid}"
      host = Socket.gethostname.b.gsub(/[^!-~]/, "-").encode("UTF-8")
      (host.empty? ? "unknown" : host)[0, HOLDER_CHARACTERS_MAX - tail.length] + tail
    end

    def setting(name, value, variable, default = nil)
      found = value.nil? ? ENV.fetch(variable, nil) : value
      found = default if value.nil? && found.to_s.empty?
      if found.nil? || found == ""
        raise ArgumentError,
              "#{name} is missing: pass #{name}: or set the environment variable #{variable}#{why_missing}"
      end
      raise TypeError, "#{name} must be a String, got #{found.class}" unless found.is_a?(String)
      raise ArgumentError, "#{name} must be ASCII, got text in #{found.encoding}" unless Arguments.readable?(found)

      found.dup.freeze
    end

    # The reason if this process runs under `volcano-locks run` (case 64).
    def why_missing
      return "" unless ENV.key?(INSIDE_RUN_VARIABLE)

      "; `volcano-locks run` does not pass the service key to its command unless it is called with --pass-service-key"
    end

    def checked_url(url)
      parts = parsed(url)
      raise ArgumentError, "api_url must not contain a user name or password" if parts.userinfo
      unless parts.is_a?(URI::HTTP) && !parts.hostname.to_s.empty? && VISIBLE.match?(url)
        raise ArgumentError, "api_url must be like https://locks.example.com, got #{url.inspect}"
      end

      if parts.query || parts.fragment
        raise ArgumentError,
              "api_url must end with its path: remove the query or fragment"
      end

      url.sub(%r{[/?#]+\z}, "").freeze
    end

    def parsed(url)
      URI.parse(url)
    rescue URI::InvalidURIError
      # The original message repeats the whole text, which may contain a password.
      raise ArgumentError, "api_url must be like https://locks.example.com, got text that is not a URL", cause: nil
    end

    def checked_service_key(service_key)
      return service_key if VISIBLE.match?(service_key)

      raise ArgumentError, "service_key must be visible ASCII characters without spaces or line breaks"
    end

    def checked_timeout(seconds)
      unless seconds.is_a?(Integer) || seconds.is_a?(Float) || seconds.is_a?(Rational)
        raise TypeError, "timeout must be a number of seconds, got #{seconds.class}"
      end
      return seconds.to_f if seconds.positive? && seconds.to_f.finite?

      raise ArgumentError, "timeout must be above 0 and finite, got #{seconds}"
    end

    def checked_holder(holder)
      raise TypeError, "holder must be a String, got #{holder.class}" unless holder.is_a?(String)
      return holder.dup.freeze if holder.length <= HOLDER_CHARACTERS_MAX && Arguments.matches?(VISIBLE, holder)

      limit = "1 to #{HOLDER_CHARACTERS_MAX} visible ASCII characters"
      raise ArgumentError, "holder must be #{limit}, got #{Arguments.shown(holder)}"
    end
  end
end
