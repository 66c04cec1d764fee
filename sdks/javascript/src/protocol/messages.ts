/**
 * Parses the service's responses.
 *
 * A response that does not match the API exactly is a failure, never a grant: a proxy's page with status 200 is not a
 * lease. Dates end in `Z` or an offset and have 0 to 9 fraction digits. A fencing token is checked in the raw text,
 * since `JSON.parse` would round one above 2^53 - 1 and lose its order (SDK-7, case 34).
 */

import { errorFor, type HeldLock, LOCK_HELD, LockHeldError, ServerError, type VolcanoError } from "../errors.ts";

export const FENCING_TOKEN_MAX: number = Number.MAX_SAFE_INTEGER;
const RETRY_AFTER_SECONDS_MAX = 3_600;
const SHOWN_CHARACTERS_MAX = 300;

const DATE = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):?(\d\d))$/;
const JSON_TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s"{}[\]:,]+/g;
const INTEGER = /^[1-9]\d*$/;

/** A complete HTTP response. `header` ignores case. */
export interface LockResponse {
  readonly status: number;
  readonly text: string;
  header(name: string): string | null;
  /** Names the proxy that the response came through, for messages; empty without one. */
  readonly through: string;
  /** The URL that was asked, for messages. */
  readonly url: string;
}

/** The expiry and the fencing token of a lease. */
export interface LeaseTerm {
  readonly expiresAt: Date;
  readonly fencingToken: number;
}

/** Whether `value` is an integer from 1 to 2^53 - 1. */
export function isFencingToken(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 1;
}

/** Parses an RFC 3339 instant and truncates it to milliseconds. Throws a `RangeError` for anything else (case 35). */
export function parseDate(text: string): Date {
  const match = DATE.exec(text);
  const wrong = (): RangeError => new RangeError(`not a date with a UTC offset: ${printable(text)}`);
  if (match === null) throw wrong();
  const [year, month, day, hour, minute, second] = match.slice(1, 7).map(Number) as [number, ...number[]];
  const [fraction, sign, offsetHours, offsetMinutes] = match.slice(7);
  const ms = Number((fraction ?? "").padEnd(3, "0").slice(0, 3));
  const local = new Date(0);
  local.setUTCFullYear(year, Number(month) - 1, Number(day));
  local.setUTCHours(Number(hour), Number(minute), Number(second), ms);
  const asWritten = `${text.slice(0, 10)}T${text.slice(11, 19)}`;
  if (local.toISOString().slice(0, 19) !== asWritten) throw wrong();
  if (Number(offsetHours ?? 0) > 23 || Number(offsetMinutes ?? 0) > 59) throw wrong();
  const offsetMs = (Number(offsetHours ?? 0) * 60 + Number(offsetMinutes ?? 0)) * 60_000;
  return new Date(local.getTime() + (sign === "-" ? offsetMs : -offsetMs));
}

/** Whether `value` is an RFC 3339 instant. */
export function isDate(value: unknown): value is string {
  try {
    return typeof value === "string" && parseDate(value) !== null;
  } catch {
    return false;
  }
}

/** The lease term in a successful acquire or renew. Throws a `ServerError` if the body is malformed. */
export function parseGrantedTerm(response: LockResponse, requestId: string): LeaseTerm {
  return parseTerm(parseBody(response, requestId), response, requestId);
}

/** The lease term of a held lock, or null for a free one. Throws a `ServerError` if the body is malformed. */
export function parseHeldTerm(response: LockResponse, requestId: string): LeaseTerm | null {
  const body = parseBody(response, requestId);
  if (body.held === false) return null;
  if (body.held !== true) throw malformedResponse(response, "held is neither true nor false", requestId);
  return parseTerm(body, response, requestId);
}

/** Whether more than half of the project's quota is left; null if the response does not show it. A limit of 0 is none. */
export function hasAmpleQuota(response: LockResponse): boolean | null {
  const names = ["X-RateLimit-Limit", "X-RateLimit-Remaining"];
  const [limit = "", remaining = ""] = names.map((name) => response.header(name) ?? "");
  if (!/^\d+$/.test(limit) || !/^\d+$/.test(remaining)) return null;
  return Number(limit) === 0 || Number(remaining) > Number(limit) / 2;
}

/** The statuses of an API URL, or a service key, that is of another service (SDK-9). */
const NAMING_THE_URL: ReadonlySet<number> = new Set([401, 404]);

/** The error for a response with another status than the expected one. `key` is the lock that the request names. */
export function errorFromResponse(response: LockResponse, requestId: string, key: string | null): VolcanoError {
  const body = parseObject(response.text) ?? {};
  const { code, error } = body;
  const reason =
    typeof error === "string" && error !== ""
      ? printable(error)
      : `HTTP ${response.status} without an error message${response.through}`;
  const message = NAMING_THE_URL.has(response.status) ? `${reason} (${response.url})` : reason;
  const details = {
    code: typeof code === "string" ? code : null,
    retryAfter: parseRetryAfter(response.header("retry-after")),
    requestId,
  };
  if (response.status !== 409 || code !== LOCK_HELD) return errorFor(response.status, message, details);
  const held = { key, ...parseHeldLock(body) };
  return new LockHeldError(heldMessage(held), { ...details, ...held, status: response.status });
}

/** What the response to an acquire says of the current lease; a missing or invalid field is unknown. */
function parseHeldLock(body: Record<string, unknown>): Required<Omit<HeldLock, "key">> {
  const { holder, expires_at: expiresAt, fencing_token: fencingToken } = body;
  return {
    holder: typeof holder === "string" ? printable(holder) : null,
    expiresAt: isDate(expiresAt) ? parseDate(expiresAt) : null,
    fencingToken: isFencingToken(fencingToken) ? fencingToken : null,
  };
}

function heldMessage({ key, holder, expiresAt, fencingToken }: HeldLock): string {
  const lock = key === null ? "the lock" : `the lock ${key}`;
  const details = [
    expiresAt ? `until ${expiresAt.toISOString()} unless renewed` : null,
    fencingToken ? `fencing token ${fencingToken}` : null,
  ].filter((detail) => detail !== null);
  return `${lock} is held by ${holder ?? "another caller"}${details.map((detail) => `, ${detail}`).join("")}`;
}

/** The body as a JSON object. Throws a `ServerError` if it is not one. */
export function parseBody(response: LockResponse, requestId: string): Record<string, unknown> {
  const body = parseObject(response.text);
  if (body === null) throw malformedResponse(response, "its body is not a JSON object", requestId);
  return body;
}

function parseObject(text: string): Record<string, unknown> | null {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null && !Array.isArray(body) ? (body as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

function parseTerm(body: Record<string, unknown>, response: LockResponse, requestId: string): LeaseTerm {
  const fencingToken = body.fencing_token;
  if (!isFencingToken(fencingToken) || !INTEGER.test(rawValue(response.text, "fencing_token"))) {
    throw malformedResponse(response, `fencing_token is not an integer from 1 to ${FENCING_TOKEN_MAX}`, requestId);
  }
  try {
    return { expiresAt: parseDate(body.expires_at as string), fencingToken };
  } catch {
    throw malformedResponse(response, "expires_at is not a date", requestId);
  }
}

/** The unparsed value of the last top-level field `name` in the JSON object `text`. */
function rawValue(text: string, name: string): string {
  let depth = 0;
  let raw = "";
  const tokens = text.match(JSON_TOKEN) ?? [];
  for (const [index, token] of tokens.entries()) {
    if (token === "{" || token === "[") depth += 1;
    else if (token === "}" || token === "]") depth -= 1;
    else if (depth === 1 && token === ":" && JSON.parse(tokens[index - 1] ?? '""') === name) {
      raw = tokens[index + 1] ?? "";
    }
  }
  return raw;
}

/** The error for a successful status with an invalid body: the response did not come from a lock service. */
export function malformedResponse(response: LockResponse, why: string, requestId: string): ServerError {
  const kind = printable(response.header("content-type") ?? "no content type");
  const message = `HTTP ${response.status} is not a lock service's response: ${why} (${kind}); check the API URL${response.through}`;
  return new ServerError(message, { status: response.status, requestId });
}

/** Whole seconds. The date form, which the service never sends, is ignored. */
function parseRetryAfter(text: string | null): number | null {
  if (text === null || !/^\d+$/.test(text)) return null;
  return Math.min(Number(text), RETRY_AFTER_SECONDS_MAX);
}

/** Shortens `text` and replaces control characters. */
function printable(text: string): string {
  return String(text)
    .slice(0, SHOWN_CHARACTERS_MAX)
    .replace(/[^\P{C}]|[\u2028\u2029]/gu, "?");
}
