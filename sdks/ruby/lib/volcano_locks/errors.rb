# frozen_string_literal: true

# What can go wrong, as classes a caller can rescue (SDK-9).
#
# Every error carries `status` (HTTP, nil when there was no answer), `code` (the server's machine code),
# `retry_after` (an Integer of seconds, nil if the response has none) and `request_id`. No message, attribute or
# `inspect` of these holds an owner token or a service key (SDK-8). Mistakes in arguments are
# `TypeError` and `ArgumentError`, raised before anything is sent.
module VolcanoLocks
  # The code of a conflict with another holder.
  LOCK_HELD = "lock_held"
  # The code of a lease that is not the caller's any more.
  LOCK_OWNERSHIP_LOST = "lock_ownership_lost"

  # Base of everything this client raises about an answer, or the lack of one.
  class VolcanoError < StandardError
    attr_reader :status, :code, :retry_after, :request_id

    def initialize(message, status: nil, code: nil, retry_after: nil, request_id: nil)
      super(message)
      @status = status
      @code = code
      @retry_after = retry_after
      @request_id = request_id
    end
  end

  # 401: the service key is missing, unknown, revoked or expired.
  class AuthenticationError < VolcanoError; end

  # 403: this credential may not do this.
  class PermissionDeniedError < AuthenticationError; end

  # 400 or 413: the server refused the request's form.
  class ValidationError < VolcanoError; end

  # 404: there is nothing at this address; is the API URL right?
  class NotFoundError < VolcanoError; end

  # 409: an answer about who holds the lock. Never retried.
  class ConflictError < VolcanoError; end

  # Somebody else holds the lock, or held it less than a second ago.
  class LockHeldError < ConflictError; end

  # The lease is not this holder's any more: told by the server, or its local deadline passed.
  class LockOwnershipLostError < ConflictError; end

  # 429: the project's quota for this minute is spent; `retry_after` says for how long.
  class RateLimitedError < VolcanoError; end

  # The answer was a 5xx, or was no answer of a lock service at all (a proxy's page, a broken body).
  class ServerError < VolcanoError; end

  # 503: the server cannot reach its store and will not guess.
  class UnavailableError < ServerError; end

  # No answer came in time. `request_sent?` is false only when the request certainly never left.
  class TransportError < VolcanoError
    def initialize(message, request_sent: true, request_id: nil)
      super(message, request_id: request_id)
      @request_sent = request_sent
    end

    # @return [Boolean] whether the server may have served the request
    def request_sent?
      @request_sent
    end
  end

  # A grant that came after the time it granted.
  class LateAnswerError < TransportError; end

  # The client was closed in the midst of a request, which may have been served.
  class CutShortError < VolcanoError; end

  # From the code and status of a refusal to the class it is raised as, and errors attached to another.
  module Errors
    BY_CONFLICT = { LOCK_HELD => LockHeldError, LOCK_OWNERSHIP_LOST => LockOwnershipLostError }.freeze
    BY_STATUS = {
      400 => ValidationError,
      401 => AuthenticationError,
      403 => PermissionDeniedError,
      404 => NotFoundError,
      413 => ValidationError,
      429 => RateLimitedError,
      503 => UnavailableError
    }.freeze

    private_constant :BY_CONFLICT, :BY_STATUS

    # The class of a refused request's error: the conflict's code decides first, then the status.
    def self.class_for(status, code)
      return BY_CONFLICT.fetch(code.to_s, ConflictError) if status == 409

      BY_STATUS.fetch(status) { (400..499).cover?(status) ? VolcanoError : ServerError }
    end

    # Attach `other` to `error`, which is raised in its place (SDK-5). A frozen error stays as it is.
    def self.attach(error, other)
      return if error.frozen? || error.equal?(other)

      error.instance_variable_set(:@volcano_locks_attached, VolcanoLocks.attached_errors(error) + [other])
    end
  end

  # What else went wrong while `error` was on its way out of a block or an acquire: a lost lease, a failed release.
  #
  # @param error [Exception] any error raised out of this client's methods
  # @return [Array<VolcanoError>] in the order they happened; empty when there is nothing
  def self.attached_errors(error)
    error.instance_variable_get(:@volcano_locks_attached) || []
  end
end
