/**
 * A lease, its record for storage, and the state that a read returns.
 *
 * The owner token is a secret in a private field, so `JSON.stringify`, `util.inspect` and a spread do not show it.
 * `toRecord()` reveals it on purpose; the record has the same fields in every language.
 *
 * `await using lease = …` releases at the end of the scope. That release is bounded in time and never throws, since its
 * error would hide the error of the scope. Limit: a lease of `acquire` is not renewed automatically and does not report
 * its loss; `withLock` does both.
 */

import { brandClass } from "../cross_build_instanceof.ts";
import { checkedKey, checkedTtl, checkedUuid, typeName } from "./arguments.ts";
import { FENCING_TOKEN_MAX, isFencingToken, parseDate } from "./messages.ts";

/** Everything needed to renew or release a lease elsewhere. It contains the owner token: store it as a secret. */
export interface LeaseRecord {
  key: string;
  token: string;
  ttl_seconds: number;
  expires_at: string;
  fencing_token: number;
}

/** The record of a lease with an unknown outcome. */
export interface UncertainLeaseRecord {
  key: string;
  token: string;
  ttl_seconds: number;
  expires_at: null;
  fencing_token: null;
}

/** The known outcome of an acquire: `granted` with expiry and fencing token, or `uncertain` without them. */
export type LeaseOutcome = "granted" | "uncertain";

/**
 * The result of a failed acquire with the caller's own token: it may or may not hold the lock. Acquire again with the
 * same `token` and `requestId` to find out, or release it.
 */
export type UncertainLease = Lease<"uncertain">;

/** Constructor fields of a lease. */
export interface LeaseFields {
  readonly key: string;
  readonly token: string;
  readonly ttlSeconds: number;
  readonly expiresAt: Date | null;
  readonly fencingToken: number | null;
  readonly dispose?: (lease: AnyLease) => Promise<void>;
}

/** A lease of either outcome. */
export type AnyLease = Lease | UncertainLease;

const INSPECT = Symbol.for("nodejs.util.inspect.custom");
const FIELDS = ["key", "token", "ttl_seconds", "expires_at", "fencing_token"] as const;
const SHOWN_PROPERTIES_MAX = 5;

/** One holding of a lock. Immutable; an older one of the same acquisition still releases. */
export class Lease<Outcome extends LeaseOutcome = "granted"> {
  readonly key: string;
  readonly ttlSeconds: number;
  /**
   * Server time, for display only: programs rely on the `signal` of `withLock`. Null if the outcome is unknown.
   * Each read returns a new `Date`, so that changing it does not change the lease.
   */
  declare readonly expiresAt: Outcome extends "granted" ? Date : null;
  /**
   * Increases whenever the lock changes hands. Send it with every write and refuse lower ones there. Null if the outcome
   * is unknown.
   */
  declare readonly fencingToken: Outcome extends "granted" ? number : null;
  /** For `await using`, in runtimes that support it. */
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;
  readonly #token: string;
  readonly #dispose: LeaseFields["dispose"];

  /** Created by `client.locks` and `Lease.fromRecord`. */
  constructor(facts: LeaseFields) {
    this.key = facts.key;
    this.ttlSeconds = facts.ttlSeconds;
    const expiresAtMs = facts.expiresAt?.getTime();
    const expiresAt = (): Date | null => (expiresAtMs === undefined ? null : new Date(expiresAtMs));
    Object.defineProperty(this, "expiresAt", { get: expiresAt, enumerable: true });
    this.fencingToken = facts.fencingToken as Lease<Outcome>["fencingToken"];
    this.#token = facts.token;
    this.#dispose = facts.dispose;
    Object.freeze(this);
  }

  /** The owner token as the caller spelled it: a secret that proves ownership. */
  get token(): string {
    return this.#token;
  }

  /** A record for storage or another process; contains the secret owner token. */
  toRecord(): Outcome extends "granted" ? LeaseRecord : UncertainLeaseRecord {
    return {
      key: this.key,
      token: this.#token,
      ttl_seconds: this.ttlSeconds,
      expires_at: this.expiresAt?.toISOString() ?? null,
      fencing_token: this.fencingToken,
    } as Outcome extends "granted" ? LeaseRecord : UncertainLeaseRecord;
  }

  /** The lease of a record. Throws a `TypeError` or `RangeError` that names the invalid field. */
  static fromRecord(record: LeaseRecord): Lease;
  static fromRecord(record: UncertainLeaseRecord): UncertainLease;
  static fromRecord(record: LeaseRecord | UncertainLeaseRecord): AnyLease;
  static fromRecord(record: LeaseRecord | UncertainLeaseRecord): AnyLease {
    if (typeof record !== "object" || record === null) throw new TypeError("lease record must be an object");
    const missing = FIELDS.filter((field) => record[field] === undefined);
    if (missing.length > 0) throw new TypeError(`lease record lacks ${missing.join(", ")}`);
    const owner = {
      key: checkedKey(record.key),
      token: checkedUuid("token", record.token),
      ttlSeconds: checkedTtl(record.ttl_seconds),
    };
    const { expires_at: expiresAt, fencing_token: fencingToken } = record;
    if (expiresAt === null && fencingToken === null) return new Lease({ ...owner, expiresAt, fencingToken });
    if (typeof expiresAt !== "string") throw new TypeError("lease record: expires_at must be a date string");
    if (!isFencingToken(fencingToken)) {
      throw new RangeError(`lease record: fencing_token must be an integer from 1 to ${FENCING_TOKEN_MAX}`);
    }
    return new Lease({ ...owner, expiresAt: parseDate(expiresAt), fencingToken });
  }

  /** Without the token. */
  toJSON(): { key: string; ttlSeconds: number; expiresAt: string | null; fencingToken: number | null } {
    const { key, ttlSeconds, expiresAt, fencingToken } = this;
    return { key, ttlSeconds, expiresAt: expiresAt?.toISOString() ?? null, fencingToken };
  }

  /** @internal */
  [INSPECT](): string {
    const { key, expiresAt, fencingToken } = this;
    if (expiresAt === null) return `Lease(${key}, outcome unknown)`;
    return `Lease(${key}, fencing token ${fencingToken}, until ${expiresAt.toISOString()})`;
  }

  static {
    brandClass(Lease, "Lease");
    if (Symbol.asyncDispose !== undefined) {
      Object.defineProperty(Lease.prototype, Symbol.asyncDispose, {
        value(this: Lease<LeaseOutcome>): Promise<void> {
          if (this.#dispose !== undefined) return this.#dispose(this as AnyLease);
          return Promise.reject(new TypeError("a lease from a record has no client: use client.locks.release"));
        },
        configurable: true,
        writable: true,
      });
    }
  }
}

/** Result of a read. If not held, an acquire would succeed now. */
export type LockState =
  | { readonly held: true; readonly expiresAt: Date; readonly fencingToken: number }
  | { readonly held: false; readonly expiresAt: null; readonly fencingToken: null };

/** Returns `lease` if it is a lease of the lock `key`; throws a `TypeError` otherwise. */
export function checkedLeaseOf(key: unknown, lease: unknown): AnyLease {
  if (key instanceof Lease) {
    throw new TypeError("key must be a string, got a Lease: pass the lock's key first, then the lease");
  }
  const name = checkedKey(key);
  if (!(lease instanceof Lease)) {
    throw new TypeError(
      `lease must be a Lease, got ${describeValue(lease)}: pass the lease that acquire resolved with`,
    );
  }
  if (lease.key === name) return lease;
  throw new TypeError(`lease must be of the lock ${name}, got a lease of ${lease.key}: pass the key of its lock`);
}

/** Describes an argument that is not a lease; an object's property names show that it is, for example, the options. */
function describeValue(value: unknown): string {
  if (typeof value !== "object" || value === null) return typeName(value);
  const names = Object.keys(value).slice(0, SHOWN_PROPERTIES_MAX);
  return names.length === 0 ? "an object" : `an object with ${names.join(", ")}`;
}
