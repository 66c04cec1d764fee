/**
 * What can go wrong, as classes a caller can tell apart (SDK-9).
 *
 * Every error carries `status` (HTTP; null when there was no answer), `code` (the service's machine code),
 * `retryAfter` (whole seconds; null when not told) and `requestId`. No message and no property of these holds an owner
 * token or a service key (SDK-8). Mistakes in arguments are `TypeError` and `RangeError`, thrown before anything is
 * sent.
 *
 * `instanceof` also recognises an error of another copy of this package, such as its CommonJS build.
 */

import { brand } from "./brand.ts";

export const LOCK_HELD = "lock_held";
export const LOCK_OWNERSHIP_LOST = "lock_ownership_lost";

/** What an error knows beside its sentence. */
export interface ErrorFacts {
  status?: number | null;
  code?: string | null;
  retryAfter?: number | null;
  requestId?: string | null;
  cause?: unknown;
}

/** Base of everything this client reports about an answer, or the lack of one. */
export class VolcanoError extends Error {
  override name = "VolcanoError";
  /** HTTP status; null when no answer came. */
  readonly status: number | null;
  /** The service's machine code; null when none was told. */
  readonly code: string | null;
  /** Whole seconds to wait before asking again; null when not told. */
  readonly retryAfter: number | null;
  /** The id that the service's log lines about this request carry, as the caller spelled it. */
  readonly requestId: string | null;

  constructor(message: string, facts: ErrorFacts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.status = facts.status ?? null;
    this.code = facts.code ?? null;
    this.retryAfter = facts.retryAfter ?? null;
    this.requestId = facts.requestId ?? null;
  }
}

/** 401: the service key is missing, unknown, revoked or expired. Also the base of 403. */
export class AuthenticationError extends VolcanoError {
  override name = "AuthenticationError";
}

/** 403: this credential may not do this. */
export class PermissionDeniedError extends AuthenticationError {
  override name = "PermissionDeniedError";
}

/** 400 or 413: the service refused the request's form. */
export class ValidationError extends VolcanoError {
  override name = "ValidationError";
}

/** 404: there is nothing at this address; is the API URL right? */
export class NotFoundError extends VolcanoError {
  override name = "NotFoundError";
}

/** 409: an answer about who holds the lock. Never sent again. */
export class ConflictError extends VolcanoError {
  override name = "ConflictError";
}

/** Another caller holds the lock, or held it less than a second ago. A verb resolves with `acquired: false` instead. */
export class LockHeldError extends ConflictError {
  override name = "LockHeldError";
}

/** The lease is not this holder's any more: the service answered so, or its local deadline passed. */
export class LockOwnershipLostError extends ConflictError {
  override name = "LockOwnershipLostError";
}

/** 429: the project's quota for this minute is spent; `retryAfter` says for how long. */
export class RateLimitedError extends VolcanoError {
  override name = "RateLimitedError";
}

/** The answer was a 5xx, or was none of a lock service at all (a proxy's page, a broken body). */
export class ServerError extends VolcanoError {
  override name = "ServerError";
}

/** 503: the service cannot reach its store and will not guess. */
export class UnavailableError extends ServerError {
  override name = "UnavailableError";
}

/** No answer came: no connection, a time-out, or the caller's `signal` (then it is the `cause`). */
export class TransportError extends VolcanoError {
  override name = "TransportError";
  /** False only when the request certainly never left. */
  readonly requestSent: boolean;

  constructor(message: string, facts: ErrorFacts & { requestSent?: boolean } = {}) {
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
for (const [name, type] of Object.entries(BRANDED)) brand(type, name);

type ErrorClass = new (message: string, facts: ErrorFacts) => VolcanoError;

const BY_STATUS: Readonly<Record<number, ErrorClass>> = {
  400: ValidationError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  413: ValidationError,
  429: RateLimitedError,
  503: UnavailableError,
};

/** The error a refused request is told as: a conflict's code decides first, then the status. */
export function errorFor(status: number, message: string, facts: ErrorFacts): VolcanoError {
  return new (classFor(status, facts.code))(message, { ...facts, status });
}

/** Why an acquire was answered 409: another caller has the lock, or the lease of this owner token has ended. */
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
  return BY_STATUS[status] ?? (status >= 400 && status < 500 ? VolcanoError : ServerError);
}

/** Puts `others` beside `error` as its `suppressed`, where logs show them, and never in its place (case 21). */
export function attach(error: unknown, ...others: ReadonlyArray<VolcanoError | null>): void {
  const suppressed = others.filter((other) => other !== null);
  if (suppressed.length === 0 || !Object.isExtensible(error)) return;
  Object.defineProperty(error, "suppressed", {
    value: suppressed,
    enumerable: true,
    configurable: true,
    writable: true,
  });
}
