// Shapes of the HTTP API that the dashboard reads, and of what it makes of them. Instants are as in HTTP-4.

export type Permission = string;

export interface Session {
  kind: "service_key" | "admin_token";
  name: string;
  project_id: string | null;
  project_name: string | null;
  permissions: Permission[] | null;
  csrf_token: string;
  expires_at: string;
}

/** A row of `GET /locks` (LIST-2). */
export interface LockRow {
  key: string;
  held: boolean;
  holder: string | null;
  acquired_at: string | null;
  renewed_at: string | null;
  expires_at: string | null;
  ttl_seconds: number | null;
  fencing_token: number | null;
  waiters: number;
}

/** A lock in the list; instants in milliseconds since 1970, NaN if unknown. */
export interface Lock {
  key: string;
  held: boolean;
  expired: boolean;
  holder: string | null;
  acquiredMs: number;
  renewedMs: number;
  expiresMs: number;
  ttlSeconds: number | null;
  fencingToken: number | null;
  waiters: number;
  readMs: number;
}

/** A waiter in the row of one lock. */
export interface Queued {
  holder: string | null;
  since: string;
}

/** The data of an event (EVENT-2), with its name. */
export interface LockEvent {
  event: string;
  key: string;
  fencing_token: number | null;
  holder: string | null;
  at: string;
  why: string;
  reason?: string;
  expires_at?: string;
}

export interface Hold {
  key: string;
  fencing_token: number;
  holder: string | null;
  key_id: string | null;
  key_name: string | null;
  address: string | null;
  client: string | null;
  began: "free" | "taken_over" | "waited" | null;
  waited_seconds: number | null;
  began_at: string;
  renewals: number | null;
  renewed_at: string | null;
  ended: null | "released" | "expired" | "forced";
  ended_by: string | null;
  reason: string | null;
  ended_at: string | null;
  expires_at: string;
  held_seconds: number;
}

export interface HeldStatistics {
  count: number;
  p50_seconds: number | null;
  p95_seconds: number | null;
  maximum_seconds: number | null;
}

export interface Project {
  id: string;
  name: string;
  requests_per_minute: number;
  created_at: string;
}

export interface ServiceKey {
  id: string;
  project_id: string;
  name: string;
  key_prefix: string;
  permissions: Permission[];
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  old_secret_good_until: string | null;
  key_value?: string;
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export interface AuditEntry {
  id: string;
  at: string;
  action: string;
  actor: { kind: "service_key" | "admin_token" | "command_line" | "server"; id: string | null; name: string };
  address: string | null;
  project_id: string | null;
  target: { kind: string; id: string | null; name: string | null };
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
  reason: string | null;
  request_id: string | null;
}

export interface Percentiles {
  p50: number | null;
  p95: number | null;
}

export interface ActivityMinute {
  at: string;
  requests: number;
  grants: number;
  contended: number;
  hand_offs: number;
  over_quota: number;
  losses: { not_renewed: number; forced: number; ownership_lost: number };
  wait_ms: Percentiles | null;
  commit_ms: Percentiles | null;
}

export interface Activity {
  project_id: string | null;
  at: string;
  requests_per_minute: number | null;
  minutes: ActivityMinute[];
  most_contended: { key: string; count: number }[];
}

export interface NodeState {
  id: string;
  is_this: boolean;
  is_live: boolean;
  version: string | null;
  store: string | null;
  worker: number | null;
  started_at: string | null;
  seen_at: string;
  health: { status: string; cause: string | null; takeovers_held: { seconds: number } | null } | null;
  clock_difference_ms: number | null;
  waiters: number | null;
  streams: number | null;
  connections: number | null;
}
