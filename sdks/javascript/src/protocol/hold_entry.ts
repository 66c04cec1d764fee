/**
 * Parses the history of locks: one entry for each hold (SDK-28).
 *
 * An entry with a missing field makes the response malformed.
 */

import type { ServerError } from "../errors.ts";
import { date, dateOrNull, type Fields, fieldReader, isCount, textOrNull } from "./lock_view.ts";
import { isDate, isFencingToken, type LockResponse, malformedResponse, parseBody } from "./messages.ts";

/** One hold of a lock, from its acquire to its end. What is unknown or does not apply is null. */
export interface HoldEntry {
  readonly key: string;
  readonly fencingToken: number;
  /** The holder's label. */
  readonly holder: string | null;
  /** The service key that acquired it. */
  readonly keyId: string | null;
  readonly keyName: string | null;
  /** The client's address and its User-Agent. */
  readonly address: string | null;
  readonly client: string | null;
  /** `free`, `taken_over` or `waited`. */
  readonly began: string | null;
  readonly waitedSeconds: number | null;
  readonly beganAt: Date;
  readonly renewals: number | null;
  readonly renewedAt: Date | null;
  /** Null while it lasts; then `released`, `expired` or `forced`. */
  readonly ended: string | null;
  /** The service key that forced it, and its reason. */
  readonly endedBy: string | null;
  readonly reason: string | null;
  readonly endedAt: Date | null;
  readonly expiresAt: Date;
  readonly heldSeconds: number;
}

/** A page of the history, and the cursor of the next one. */
export interface HistoryPage {
  readonly entries: readonly HoldEntry[];
  readonly nextCursor: string | null;
}

/** Parses a page. Throws a `ServerError` if the response is malformed. */
export function parseHistoryPage(response: LockResponse, requestId: string): HistoryPage {
  const malformed = (why: string): ServerError => malformedResponse(response, why, requestId);
  const { items, next_cursor: nextCursor } = parseBody(response, requestId);
  if (!Array.isArray(items)) throw malformed("items is not a list");
  if (nextCursor !== null && (typeof nextCursor !== "string" || nextCursor === "")) {
    throw malformed("next_cursor is neither a string nor null");
  }
  return { entries: items.map((item) => entryFromFields(Object(item), malformed)), nextCursor };
}

function entryFromFields(fields: Fields, malformed: (why: string) => ServerError): HoldEntry {
  const field = fieldReader(fields, malformed);
  return Object.freeze({
    key: field("key", (value): value is string => typeof value === "string"),
    fencingToken: field("fencing_token", isFencingToken),
    holder: field("holder", textOrNull),
    keyId: field("key_id", textOrNull),
    keyName: field("key_name", textOrNull),
    address: field("address", textOrNull),
    client: field("client", textOrNull),
    began: field("began", textOrNull),
    waitedSeconds: field("waited_seconds", (value): value is number | null => value === null || isSeconds(value)),
    beganAt: field("began_at", isDate, date),
    renewals: field("renewals", (value): value is number | null => value === null || isCount(value)),
    renewedAt: field("renewed_at", dateOrNull, date),
    ended: field("ended", textOrNull),
    endedBy: field("ended_by", textOrNull),
    reason: field("reason", textOrNull),
    endedAt: field("ended_at", dateOrNull, date),
    expiresAt: field("expires_at", isDate, date),
    heldSeconds: field("held_seconds", isSeconds),
  });
}

function isSeconds(value: unknown): value is number {
  return typeof value === "number" && value >= 0;
}
