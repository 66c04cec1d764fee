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

      # The fake knows no service keys, addresses and clients.
      def hold_json(key, hold)
        unknown = %i[key_id key_name address client waited_seconds ended_by].to_h { |name| [name, nil] }
        { key: key, fencing_token: hold.fencing_token, holder: hold.holder, **unknown, began: hold.began,
          began_at: date(hold.began_at), renewals: hold.renewals, renewed_at: hold.renewed_at && date(hold.renewed_at),
          ended: hold.ended, reason: hold.reason, ended_at: hold.ended_at && date(hold.ended_at),
          expires_at: date(hold.expires_at), held_seconds: ((hold.ended_at || @clock.now) - hold.began_at).round(3) }
      end

      def event_json(key, event)
        json = { key: key, fencing_token: event.fencing_token, holder: event.holder,
                 at: date(event.at), why: event.why }
        json[:expires_at] = date(event.expires_at) if event.expires_at
        json[:reason] = event.reason if event.reason
        json
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
