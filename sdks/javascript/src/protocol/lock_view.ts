/**
 * Parses what observers see of a lock: its view, pages of the list, and leadership events.
 *
 * A view with a missing field makes the response malformed (SDK-15). Events of unknown kinds are skipped.
 */

import { type ServerError, TransportError, type VolcanoError } from "../errors.ts";
import { isDate, isFencingToken, type LockResponse, malformedResponse, parseBody, parseDate } from "./messages.ts";

/** One lock without its owner token. The fields of the lease are null if the lock is free. */
export interface LockView {
  readonly key: string;
  /** False: an acquire would succeed now. */
  readonly held: boolean;
  /** The holder's label. */
  readonly holder: string | null;
  readonly acquiredAt: Date | null;
  readonly renewedAt: Date | null;
  readonly expiresAt: Date | null;
  readonly ttlSeconds: number | null;
  /** The latest one, even if the lock is free; null if unknown. */
  readonly fencingToken: number | null;
  /** The number of waiters. */
  readonly waiters: number;
  /** The labels of the first waiters on the server's node, the next one first; only `view` fills it. */
  readonly queue: readonly (string | null)[];
}

/** A page of the list, and the cursor of the next one. */
export interface ViewPage {
  readonly views: readonly LockView[];
  readonly nextCursor: string | null;
}

/** An event that says who holds a lock. */
export interface LeadershipEvent {
  readonly kind: "acquired" | "renewed" | "released" | "expired" | "force_released";
  readonly fencingToken: number;
  readonly holder: string | null;
  readonly at: Date;
}

const LEADERSHIP_KINDS: ReadonlySet<string> = new Set(["acquired", "renewed", "released", "expired", "force_released"]);

/** The fields of a JSON object. */
export type Fields = Record<string, unknown>;

/** Parses a view. Throws a `ServerError` if the response is malformed. */
export function parseView(response: LockResponse, requestId: string): LockView {
  return viewFromFields(parseBody(response, requestId), (why) => malformedResponse(response, why, requestId));
}

/** Parses a page. Throws a `ServerError` if the response is malformed. */
export function parsePage(response: LockResponse, requestId: string): ViewPage {
  const malformed = (why: string): ServerError => malformedResponse(response, why, requestId);
  const { items, next_cursor: nextCursor } = parseBody(response, requestId);
  if (!Array.isArray(items)) throw malformed("items is not a list");
  if (nextCursor !== null && (typeof nextCursor !== "string" || nextCursor === "")) {
    throw malformed("next_cursor is neither a string nor null");
  }
  return { views: items.map((item) => viewFromFields(Object(item), malformed)), nextCursor };
}

/**
 * Parses an event; null if its kind is not about who holds the lock. Throws a `TransportError` for a malformed event,
 * which counts as lost in transit.
 */
export function parseLeadershipEvent(kind: string, data: string, requestId: string): LeadershipEvent | null {
  if (!LEADERSHIP_KINDS.has(kind)) return null;
  const malformed = (why: string): TransportError =>
    new TransportError(`malformed event ${kind}: ${why}`, { requestId });
  let fields: Fields;
  try {
    fields = Object(JSON.parse(data));
  } catch {
    throw malformed("its data is not JSON");
  }
  const field = fieldReader(fields, malformed);
  const fencingToken = field("fencing_token", isFencingToken);
  return {
    kind: kind as LeadershipEvent["kind"],
    fencingToken,
    holder: field("holder", textOrNull),
    at: field("at", isDate, date),
  };
}

function viewFromFields(fields: Fields, malformed: (why: string) => ServerError): LockView {
  const field = fieldReader(fields, malformed);
  const held = field("held", (value): value is boolean => typeof value === "boolean");
  const whenHeld = held ? isDate : dateOrNull;
  return Object.freeze({
    key: field("key", (value): value is string => typeof value === "string"),
    held,
    holder: field("holder", textOrNull),
    acquiredAt: field("acquired_at", whenHeld, date),
    renewedAt: field("renewed_at", whenHeld, date),
    expiresAt: field("expires_at", whenHeld, date),
    ttlSeconds: field("ttl_seconds", (value): value is number | null => isCount(value) || (!held && value === null)),
    fencingToken: field("fencing_token", (value): value is number | null => {
      return isFencingToken(value) || (!held && value === null);
    }),
    waiters: field("waiters", isCount),
    queue: Object.freeze(field("queue", isQueue, (queue = []) => queue.map(({ holder }) => holder))),
  });
}

function isQueue(value: unknown): value is readonly { holder: string | null }[] | undefined {
  return value === undefined || (Array.isArray(value) && value.every((one) => textOrNull(Object(one).holder)));
}

export type FieldReader = {
  <T>(name: string, fits: (value: unknown) => value is T): T;
  <T, R>(name: string, fits: (value: unknown) => value is T, read: (value: T) => R): R;
};

/** Reads fields that must fit. Throws what `malformed` creates. */
export function fieldReader(fields: Fields, malformed: (why: string) => VolcanoError): FieldReader {
  return <T>(name: string, fits: (value: unknown) => value is T, read: (value: T) => unknown = (value) => value) => {
    const value = fields[name];
    if (!fits(value)) throw malformed(`its ${name} is missing or invalid`);
    return read(value) as never;
  };
}

export function date<T extends string | null>(value: T): T extends null ? Date | null : Date {
  return (value === null ? null : parseDate(value)) as never;
}

export function dateOrNull(value: unknown): value is string | null {
  return value === null || isDate(value);
}

export function textOrNull(value: unknown): value is string | null {
  return value === null || typeof value === "string";
}

export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
