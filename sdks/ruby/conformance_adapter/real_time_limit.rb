# frozen_string_literal: true

# The conformance target of the Ruby client.
module Conformance
  # Sockets count real seconds, and the scenario's clock stands still while a busy server responds. So the client's
  # clock alone ends a request that has little time left.
  module RealTimeLimit
    SECONDS = 60

    def call(request, *connection)
      relaxed = VolcanoLocks::Request.new(verb: request.verb, path: request.path, headers: request.headers,
                                          body: request.body, timeout_seconds: SECONDS)
      super(relaxed, *connection)
    end
  end

  VolcanoLocks::HttpTransport.prepend(RealTimeLimit)
end
