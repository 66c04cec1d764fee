# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # How the fake shows its locks, by the dates of `@clock`.
    module Shown
      private

      def term(lock)
        { expires_at: date(lock.expires_at), fencing_token: lock.fencing_token }
      end

      def row(lock)
        held = !lock.owner.nil?
        of_the_lease = { holder: lock.holder, acquired_at: date(lock.acquired_at), renewed_at: date(lock.renewed_at),
                         expires_at: date(lock.expires_at), ttl_seconds: lock.ttl_seconds }
        { key: lock.key, held: held, **(held ? of_the_lease : of_the_lease.transform_values { nil }),
          fencing_token: lock.fencing_token.zero? ? nil : lock.fencing_token, waiters: lock.waiters }
      end

      def body_of(key, happening)
        body = { key: key, fencing_token: happening.fencing_token, holder: happening.holder,
                 at: date(happening.at), why: happening.why }
        happening.expires_at ? { **body, expires_at: date(happening.expires_at) } : body
      end

      def date(instant)
        Messages.date_text(@clock.utc_now + Rational(((instant - @clock.now) * 1000).round, 1000))
      end

      def utc_ms
        (@clock.utc_now.to_r * 1000).to_i
      end
    end
  end
end
