# frozen_string_literal: true

module VolcanoLocks
  module Testing
    # Locks and lock events of the fake as JSON objects, with dates by `@clock`.
    module FakeLockJson
      private

      def lease_json(lock)
        { expires_at: date(lock.expires_at), fencing_token: lock.fencing_token }
      end

      # The lease that holds the lock (HTTP-28).
      def holder_json(lock)
        fields = { holder: lock.holder, **lease_json(lock) }
        lock.owner ? fields : fields.transform_values { nil }
      end

      def row_json(lock)
        held = !lock.owner.nil?
        lease = { holder: lock.holder, acquired_at: date(lock.acquired_at), renewed_at: date(lock.renewed_at),
                  expires_at: date(lock.expires_at), ttl_seconds: lock.ttl_seconds }
        { key: lock.key, held: held, **(held ? lease : lease.transform_values { nil }),
          fencing_token: lock.fencing_token.zero? ? nil : lock.fencing_token, waiters: lock.waiters }
      end

      def event_json(key, event)
        json = { key: key, fencing_token: event.fencing_token, holder: event.holder,
                 at: date(event.at), why: event.why }
        event.expires_at ? { **json, expires_at: date(event.expires_at) } : json
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
