/**
 * One holding of a lock, and what a read says of one.
 *
 * A lease's owner token is a secret: it is in a private field, so neither `JSON.stringify` nor `util.inspect` nor a
 * spread shows it (SDK-8). `toRecord()` gives it out on purpose; the record has the same fields in every language.
 *
 * `await using lease = …` releases at the end of the scope. That release is bounded and never throws, since what it
 * threw would hide the error of the scope. Not promised: an own lease is not renewed by itself, and nothing tells of
 * its loss; `withLock` does both.
 */

import { checkedKey, checkedTtl, checkedUuid, FENCING_TOKEN_MAX, isFencingToken, parseDate } from "./messages.ts";

/** Everything needed to renew or release a lease elsewhere, its secret token included: store it as a secret. */
export interface LeaseRecord {
  key: string;
  token: string;
  ttl_seconds: number;
  expires_at: string;
  fencing_token: number;
}

/** What a lease is made of. */
export interface LeaseFacts {
  readonly key: string;
  readonly token: string;
  readonly ttlSeconds: number;
  readonly expiresAt: Date;
  readonly fencingToken: number;
  readonly dispose?: (lease: Lease) => Promise<void>;
}

const INSPECT = Symbol.for("nodejs.util.inspect.custom");
/** The same in every copy of this package, so that a lease from its ESM form serves its CommonJS form. */
const BRAND = Symbol.for("volcano-locks.Lease");
const FIELDS = ["key", "token", "ttl_seconds", "expires_at", "fencing_token"] as const;

/** One holding of a lock. Immutable; an older one of the same acquisition still releases (case 22). */
export class Lease {
  readonly key: string;
  readonly ttlSeconds: number;
  /** The server's time, for people: what to rely on is `withLock`'s `signal`. */
  readonly expiresAt: Date;
  /** Rises whenever the lock changes hands: send it along with every write, and refuse a lower one there. */
  readonly fencingToken: number;
  /** `await using`, in runtimes that have it. */
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;
  readonly #token: string;
  readonly #dispose: ((lease: Lease) => Promise<void>) | null;

  /** Made by `client.locks` and `Lease.fromRecord`. */
  constructor(facts: LeaseFacts) {
    this.key = facts.key;
    this.ttlSeconds = facts.ttlSeconds;
    this.expiresAt = facts.expiresAt;
    this.fencingToken = facts.fencingToken;
    this.#token = facts.token;
    this.#dispose = facts.dispose ?? null;
    Object.freeze(this);
  }

  /** The owner token: a secret that proves ownership. */
  get token(): string {
    return this.#token;
  }

  /** For storage or another process; contains the secret token. */
  toRecord(): LeaseRecord {
    return {
      key: this.key,
      token: this.#token,
      ttl_seconds: this.ttlSeconds,
      expires_at: this.expiresAt.toISOString(),
      fencing_token: this.fencingToken,
    };
  }

  /** The lease that `toRecord` described. `TypeError` or `RangeError` names the field that is wrong. */
  static fromRecord(record: LeaseRecord): Lease {
    if (typeof record !== "object" || record === null) throw new TypeError("lease record must be an object");
    const missing = FIELDS.filter((field) => record[field] === undefined);
    if (missing.length > 0) throw new TypeError(`lease record lacks ${missing.join(", ")}`);
    if (typeof record.expires_at !== "string") throw new TypeError("lease record: expires_at must be a date as text");
    if (!isFencingToken(record.fencing_token)) {
      throw new RangeError(`lease record: fencing_token must be an integer from 1 to ${FENCING_TOKEN_MAX}`);
    }
    return new Lease({
      key: checkedKey(record.key),
      token: checkedUuid("token", record.token),
      ttlSeconds: checkedTtl(record.ttl_seconds),
      expiresAt: parseDate(record.expires_at),
      fencingToken: record.fencing_token,
    });
  }

  /** Without the token. */
  toJSON(): { key: string; ttlSeconds: number; expiresAt: string; fencingToken: number } {
    const { key, ttlSeconds, expiresAt, fencingToken } = this;
    return { key, ttlSeconds, expiresAt: expiresAt.toISOString(), fencingToken };
  }

  /** @internal */
  [INSPECT](): string {
    return `Lease(${this.key}, fencing token ${this.fencingToken}, until ${this.expiresAt.toISOString()})`;
  }

  static {
    Object.defineProperty(Lease.prototype, BRAND, { value: true });
    if (Symbol.asyncDispose !== undefined) {
      Object.defineProperty(Lease.prototype, Symbol.asyncDispose, {
        value(this: Lease): Promise<void> {
          if (this.#dispose !== null) return this.#dispose(this);
          return Promise.reject(new TypeError("a lease from a record knows no client: use client.locks.release"));
        },
        configurable: true,
        writable: true,
      });
    }
  }
}

/** What a read says. Not held: an acquire would succeed now. */
export type LockState =
  | { readonly held: true; readonly expiresAt: Date; readonly fencingToken: number }
  | { readonly held: false; readonly expiresAt: null; readonly fencingToken: null };

/** `lease` if it is one, else `TypeError`. */
export function checkedLease(lease: unknown): Lease {
  if (isLease(lease)) return lease;
  throw new TypeError(`lease must be a Lease, got ${lease === null ? "null" : typeof lease}`);
}

function isLease(value: unknown): value is Lease {
  return typeof value === "object" && value !== null && BRAND in value;
}
