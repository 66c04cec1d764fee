/**
 * The client's error classes, one per kind of failure that a caller may handle (SDK-9).
 *
 * Every error has `status` (HTTP; null without a response), `code` (the service's error code), `retryAfter` (whole
 * seconds, or null) and `requestId`. No message or property contains an owner token or a service key (SDK-8). Invalid
 * arguments throw `TypeError` or `RangeError` before anything is sent.
 *
 * `instanceof` also recognises an error of another copy of this package, such as its CommonJS build.
 */

import { brandClass } from "./cross_build_instanceof.ts";

export const LOCK_HELD = "lock_held";
export const LOCK_OWNERSHIP_LOST = "lock_ownership_lost";
/** The code of a 503 that no retry cures: the stored record is damaged. */
export const RECORD_DAMAGED = "lock_record_damaged";

/** The properties of an error beside its message. */
export interface ErrorDetails {
  status?: number | null;
  code?: string | null;
  retryAfter?: number | null;
  requestId?: string | null;
  cause?: unknown;
}

/** Base class of every failed request: an error response, or no response. */
export class VolcanoError extends Error {
  /** HTTP status; null without a response. */
  readonly status: number | null;
  /** The service's error code; null if the response had none. */
  readonly code: string | null;
  /** Whole seconds to wait before a retry; null if the response did not say. */
  readonly retryAfter: number | null;
  /** The id that the service's log lines about this request carry, as the caller spelled it. */
  readonly requestId: string | null;

  constructor(message: string, facts: ErrorDetails = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    // Copied from the prototype, so that `JSON.stringify` shows it.
    this.name = this.name;
    this.status = facts.status ?? null;
    this.code = facts.code ?? null;
    this.retryAfter = facts.retryAfter ?? null;
    this.requestId = facts.requestId ?? null;
  }
}

/** 401: the service key is missing, unknown, revoked or expired. Also the base of 403. */
export class AuthenticationError extends VolcanoError {}

/** 403: the service key lacks the permission for this request. */
export class PermissionDeniedError extends AuthenticationError {}

/** 400 or 413: the service rejected the request as invalid. */
export class ValidationError extends VolcanoError {}

/** 404: the service does not have this address; check the API URL. */
export class NotFoundError extends VolcanoError {}

/** 409: the request conflicts with who holds the lock. Never retried. */
export class ConflictError extends VolcanoError {}

/** What a `LockHeldError` says of the lock, as far as it is known. */
export interface HeldLock {
  key?: string | null;
  holder?: string | null;
  expiresAt?: Date | null;
  fencingToken?: number | null;
}

/**
 * Another caller holds the lock, or held it less than a second ago. A verb resolves with `acquired: false` instead; the
 * verbs of `throwOnError()` and `exclusive` reject with it. Each property is null if it is unknown.
 */
export class LockHeldError extends ConflictError {
  readonly key: string | null;
  /** The holder's label. */
  readonly holder: string | null;
  /** When the current lease expires if it is not renewed, by the server's clock. */
  readonly expiresAt: Date | null;
  readonly fencingToken: number | null;

  constructor(message: string, facts: ErrorDetails & HeldLock = {}) {
    super(message, facts);
    this.key = facts.key ?? null;
    this.holder = facts.holder ?? null;
    this.expiresAt = facts.expiresAt ?? null;
    this.fencingToken = facts.fencingToken ?? null;
  }
}

/** This holder no longer owns the lease: the service responded so, or the local deadline passed. */
export class LockOwnershipLostError extends ConflictError {}

/** 429: the project's quota or its share of a server is used up (see `code`); retry after `retryAfter` seconds. */
export class RateLimitedError extends VolcanoError {}

/** The response was a 5xx, or did not come from a lock service (a proxy's page, a broken body). */
export class ServerError extends VolcanoError {}

/** 503: the service cannot reach its store, so it cannot decide. A damaged record (`lock_record_damaged`) is a `ServerError`. */
export class UnavailableError extends ServerError {}

/** No response: the connection failed, the request timed out, or the caller's `signal` aborted (its reason is `cause`). */
export class TransportError extends VolcanoError {
  /** False only if the request was certainly not sent. */
  readonly requestSent: boolean;

  constructor(message: string, facts: ErrorDetails & { requestSent?: boolean } = {}) {
    super(message, facts);
    this.requestSent = facts.requestSent ?? true;
  }
}

const BRANDED = {
  VolcanoError,
  AuthenticationError,
  PermissionDeniedError,
  ValidationError,
  NotFoundError,
  ConflictError,
  LockHeldError,
  LockOwnershipLostError,
  RateLimitedError,
  ServerError,
  UnavailableError,
  TransportError,
};
for (const [name, type] of Object.entries(BRANDED)) {
  brandClass(type, name);
  type.prototype.name = name;
}

type ErrorClass = new (message: string, facts: ErrorDetails) => VolcanoError;

const BY_STATUS: Readonly<Record<number, ErrorClass>> = {
  400: ValidationError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  413: ValidationError,
  429: RateLimitedError,
  503: UnavailableError,
};

/** The error for an HTTP status. For a 409 and a damaged record the code selects the class. */
export function errorFor(status: number, message: string, facts: ErrorDetails): VolcanoError {
  return new (classFor(status, facts.code))(message, { ...facts, status });
}

/** Why an acquire got 409: another caller holds the lock, or the lease of this owner token has ended. */
export type ContentionReason = typeof LOCK_HELD | typeof LOCK_OWNERSHIP_LOST;

/** Every 409 to an acquire is contention, whatever its code (SDK-21). */
export function contentionReason(error: ConflictError): ContentionReason {
  return error.code === LOCK_OWNERSHIP_LOST ? LOCK_OWNERSHIP_LOST : LOCK_HELD;
}

function classFor(status: number, code: string | null | undefined): ErrorClass {
  if (status === 409) {
    if (code === LOCK_HELD) return LockHeldError;
    return code === LOCK_OWNERSHIP_LOST ? LockOwnershipLostError : ConflictError;
  }
  if (code === RECORD_DAMAGED) return ServerError;
  return BY_STATUS[status] ?? (status >= 400 && status < 500 ? VolcanoError : ServerError);
}

/**
 * Appends `others` to the `suppressed` of `error`, which logs show; `error` itself stays the result (case 21). Keeps what
 * is there, such as that of a `SuppressedError`. Never throws (case 76).
 */
export function attachSuppressed(error: unknown, ...others: ReadonlyArray<VolcanoError | null>): void {
  const added = others.filter((other) => other !== null && other !== error);
  if (added.length === 0) return;
  try {
    const { suppressed } = error as { suppressed?: unknown };
    if (Array.isArray(suppressed) && Object.isExtensible(suppressed)) {
      suppressed.push(...added);
      return;
    }
    const before = suppressed === undefined ? [] : [suppressed].flat();
    const facts = { enumerable: true, configurable: true, writable: true };
    Object.defineProperty(error, "suppressed", { value: [...before, ...added], ...facts });
  } catch {
    // A frozen error or a value that is no object keeps nothing.
  }
}
