# frozen_string_literal: true

module Conformance
  # Converts the client's values and errors to the fields of a result.
  module Results
    private

    def view_result(view)
      dates = { acquired_at_ms: view.acquired_at, renewed_at_ms: view.renewed_at, expires_at_ms: view.expires_at }
      { held: view.held?, holder: view.holder, fencing_token: view.fencing_token, ttl_seconds: view.ttl_seconds,
        waiters: view.waiters, **dates.compact.transform_values { |date| ms_of(date) } }
    end

    def change_result(change)
      { held: change.held?, holder: change.holder, fencing_token: change.fencing_token,
        at_ms: change.since && ms_of(change.since) }
    end

    def lease_result(lease)
      { expires_at_ms: ms_of(lease.expires_at), fencing_token: lease.fencing_token }
    end

    def ms_of(time)
      (time.to_r * 1000).to_i
    end

    def failure(error)
      { error: code_of(error), error_classes: classes_of(error), retry_after_seconds: error.retry_after }
        .compact.merge(holder_result(error))
    end

    # The lease that holds the lock, whose fields are nil if unknown.
    def holder_result(error)
      return {} unless error.respond_to?(:holder)

      { holder: error.holder, expires_at_ms: error.expires_at && ms_of(error.expires_at),
        fencing_token: error.fencing_token }
    end

    def classes_of(error)
      error.class.ancestors.grep(Class).map { |one| one.name.split("::").last }
    end

    def code_of(error)
      return "no_answer" if error.is_a?(VolcanoLocks::TransportError)
      return error.code if error.code

      error.is_a?(VolcanoLocks::ServerError) ? "bad_answer" : raise(error)
    end

    def attached_to(error)
      first = VolcanoLocks.attached_errors(error).first
      first ? { attached: first.class.name.split("::").last } : {}
    end
  end
end
