# frozen_string_literal: true

# The errors that a caller can rescue.
#
# Every error has `status` (HTTP, nil without a response), `code` (the server's error code), `retry_after` (an Integer
# of seconds, nil if the response has none) and `request_id`. No message, attribute or `inspect` contains an owner token
# or a service key. Wrong arguments raise `TypeError` or `ArgumentError` before anything is sent.
module VolcanoLocks
  # Code of a conflict with another holder.
  LOCK_HELD = "lock_held"
  # Code of a lease that is no longer the caller's.
  LOCK_OWNERSHIP_LOST = "lock_ownership_lost"
  # The code of a 503 that no retry cures: the stored record is damaged.
  RECORD_DAMAGED = "lock_record_damaged"

  # Base class of the errors that this client raises for a request.
  class VolcanoError < StandardError
    attr_reader :status, :code, :retry_after, :request_id

    def initialize(message, status: nil, code: nil, retry_after: nil, request_id: nil)
      super(message)
      @status = status
      @code = code
      @retry_after = retry_after
      @request_id = request_id
    end

    # @api private
    def of_request(request)
      dup.tap { |error| error.instance_variable_set(:@request_id, request_id || request.request_id) }
    end
  end

  # 401: the service key is missing, unknown, revoked or expired.
  class AuthenticationError < VolcanoError; end

  # 403: the service key lacks the permission.
  class PermissionDeniedError < AuthenticationError; end

  # 400 or 413: the request is invalid.
  class ValidationError < VolcanoError; end

  # 404: the address is unknown. Check the API URL.
  class NotFoundError < VolcanoError; end

  # 409: another owner holds the lock. Never retried.
  class ConflictError < VolcanoError; end

  # Another owner holds the lock, or held it less than a second ago.
  class LockHeldError < ConflictError
    # @return [String, nil] the lock's key
    attr_reader :key
    # @return [String, nil] the label of its holder, if known
    attr_reader :holder
    # @return [Time, nil] when the holder's lease ends by the server's clock, if known
    attr_reader :expires_at
    # @return [Integer, nil] of the holder's lease, if known
    attr_reader :fencing_token

    def initialize(message, key: nil, holder: nil, expires_at: nil, fencing_token: nil, **fields)
      super(message, **fields)
      @key = key
      @holder = holder
      @expires_at = expires_at
      @fencing_token = fencing_token
    end
  end

  # The lease is no longer this holder's: the server said so, or the local deadline passed.
  class LockOwnershipLostError < ConflictError; end

  # 429: the project's quota or its share of a server is used up (see `code`). Retry after `retry_after` seconds.
  class RateLimitedError < VolcanoError; end

  # The response is a 5xx, or does not come from a lock service (a proxy's page, a malformed body).
  class ServerError < VolcanoError; end

  # 503: the server cannot reach its store. A damaged record (`lock_record_damaged`) is a ServerError.
  class UnavailableError < ServerError; end

  # No response arrived in time. `request_sent?` is false only if the request certainly never left.
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

  # The response granted a lease that had already ended.
  class LateResponseError < TransportError; end

  # The client was closed during a request, which the server may have served.
  class RequestCancelledError < VolcanoError; end

  # Maps the status and code of a response to an error class, and attaches one error to another.
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

    # The error class of a response: the code decides for a 409 and a damaged record, the status otherwise.
    def self.class_for(status, code)
      return BY_CONFLICT.fetch(code.to_s, ConflictError) if status == 409
      return ServerError if code.to_s == RECORD_DAMAGED

      BY_STATUS.fetch(status) { (400..499).cover?(status) ? VolcanoError : ServerError }
    end

    # Attach `other` to `error`, which is raised in its place. A frozen error stays as it is.
    def self.attach(error, other)
      return if error.frozen? || error.equal?(other)

      error.instance_variable_set(:@volcano_locks_attached, VolcanoLocks.attached_errors(error) + [other])
    end
  end

  # The errors that happened while `error` left a block or an acquire: a lost lease, a failed release.
  #
  # @param error [Exception] any error raised out of this client's methods
  # @return [Array<VolcanoError>] in the order in which they happened; empty if there are none
  def self.attached_errors(error)
    error.instance_variable_get(:@volcano_locks_attached) || []
  end
end
