/**
 * What people and programs that do not hold a lock are told of it: one row of the list, and the events of its stream.
 *
 * An answer that lacks a field of a row is none (SDK-15). Events of a kind that is not known here are passed over.
 */

import { type ServerError, TransportError, type VolcanoError } from "../errors.ts";
import { type Answer, bodyOf, isFencingToken, malformed, parseDate } from "./messages.ts";

/** One lock as everybody may see it, without any token. What belongs to a lease is null of a lock that is free. */
export interface LockView {
  readonly key: string;
  /** False: an acquire would succeed now. */
  readonly held: boolean;
  /** The label of who holds it. */
  readonly holder: string | null;
  readonly acquiredAt: Date | null;
  readonly renewedAt: Date | null;
  readonly expiresAt: Date | null;
  readonly ttlSeconds: number | null;
  /** The last one, also of a free lock; null where none is known. */
  readonly fencingToken: number | null;
  /** How many wait for it. */
  readonly waiters: number;
}

/** A page of the list, and where the next one begins. */
export interface Page {
  readonly views: readonly LockView[];
  readonly nextCursor: string | null;
}

/** What an event tells of who holds a lock. */
export interface Told {
  readonly kind: "acquired" | "renewed" | "released" | "expired" | "force_released";
  readonly fencingToken: number;
  readonly holder: string | null;
  readonly at: Date;
}

const ABOUT_LEADERSHIP: ReadonlySet<string> = new Set(["acquired", "renewed", "released", "expired", "force_released"]);

type Fields = Record<string, unknown>;

/** The row that `answer` is; `ServerError` if it is none. */
export function viewOf(answer: Answer, requestId: string): LockView {
  return row(bodyOf(answer, requestId), (why) => malformed(answer, why, requestId));
}

/** The page that `answer` is; `ServerError` if it is none. */
export function pageOf(answer: Answer, requestId: string): Page {
  const wrong = (why: string): ServerError => malformed(answer, why, requestId);
  const { items, next_cursor: nextCursor } = bodyOf(answer, requestId);
  if (!Array.isArray(items)) throw wrong("items is not a list");
  if (nextCursor !== null && (typeof nextCursor !== "string" || nextCursor === "")) {
    throw wrong("next_cursor is neither text nor null");
  }
  return { views: items.map((item) => row(Object(item), wrong)), nextCursor };
}

/**
 * What the event of `kind` with `data` tells, null if that is nothing about who holds it. One that is none is as good as
 * lost on its way: `TransportError`.
 */
export function toldBy(kind: string, data: string, requestId: string): Told | null {
  if (!ABOUT_LEADERSHIP.has(kind)) return null;
  const wrong = (why: string): TransportError => new TransportError(`an event ${kind} is none: ${why}`, { requestId });
  let fields: Fields;
  try {
    fields = Object(JSON.parse(data));
  } catch {
    throw wrong("its data is not JSON");
  }
  const field = reader(fields, wrong);
  const fencingToken = field("fencing_token", isFencingToken);
  return {
    kind: kind as Told["kind"],
    fencingToken,
    holder: field("holder", textOrNull),
    at: field("at", isDate, date),
  };
}

function row(fields: Fields, wrong: (why: string) => ServerError): LockView {
  const field = reader(fields, wrong);
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
  });
}

type Reader = {
  <T>(name: string, fits: (value: unknown) => value is T): T;
  <T, R>(name: string, fits: (value: unknown) => value is T, read: (value: T) => R): R;
};

function reader(fields: Fields, wrong: (why: string) => VolcanoError): Reader {
  return <T>(name: string, fits: (value: unknown) => value is T, read: (value: T) => unknown = (value) => value) => {
    const value = fields[name];
    if (!fits(value)) throw wrong(`its ${name} is not what it must be`);
    return read(value) as never;
  };
}

function date<T extends string | null>(value: T): T extends null ? Date | null : Date {
  return (value === null ? null : parseDate(value)) as never;
}

function isDate(value: unknown): value is string {
  try {
    return typeof value === "string" && parseDate(value) !== null;
  } catch {
    return false;
  }
}

function dateOrNull(value: unknown): value is string | null {
  return value === null || isDate(value);
}

function textOrNull(value: unknown): value is string | null {
  return value === null || typeof value === "string";
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
