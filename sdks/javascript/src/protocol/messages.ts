/**
 * What travels: arguments checked before anything is sent, answers parsed before anything is believed.
 *
 * An answer that is not exactly what the wire promises is a failure, never a grant: a proxy's page with status 200 is
 * no lease. Dates may end in `Z` or an offset and have 0 to 9 digits of fraction. A fencing token is looked at in the
 * text that came, since `JSON.parse` would round one above 2^53 - 1 and lose its order (SDK-7, case 34).
 */

import { errorFor, ServerError, type VolcanoError } from "../errors.ts";

export const TTL_SECONDS_MIN = 5;
export const TTL_SECONDS_MAX = 7_776_000;
export const FENCING_TOKEN_MAX: number = Number.MAX_SAFE_INTEGER;
const RETRY_AFTER_SECONDS_MAX = 3_600;
const SHOWN_CHARACTERS_MAX = 300;

const KEY = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/;
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const DATE = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):?(\d\d))$/;
const JSON_TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s"{}[\]:,]+/g;
const INTEGER = /^[1-9]\d*$/;

/** One HTTP answer, read to its end. `header` takes any case. */
export interface Answer {
  readonly status: number;
  readonly text: string;
  header(name: string): string | null;
}

/** When a lease ends and its fencing token, as an answer told them. */
export interface Term {
  readonly expiresAt: Date;
  readonly fencingToken: number;
}

/** `key` if it may name a lock, else `TypeError` or `RangeError`. */
export function checkedKey(key: unknown): string {
  if (typeof key !== "string") throw new TypeError(`key must be a string, got ${typeName(key)}`);
  if (KEY.test(key)) return key;
  const rule = "key must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit";
  throw new RangeError(`${rule}, got ${JSON.stringify(key.slice(0, SHOWN_CHARACTERS_MAX))}`);
}

/** `prefix` if keys may begin so (all do with the empty one), else `TypeError` or `RangeError`. */
export function checkedPrefix(prefix: unknown): string {
  if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, got ${typeName(prefix)}`);
  if (prefix === "" || KEY.test(prefix)) return prefix;
  const got = JSON.stringify(prefix.slice(0, SHOWN_CHARACTERS_MAX));
  throw new RangeError(`prefix must be empty or what a key may begin with, got ${got}`);
}

/** `value` if it is one of `choices`, else `TypeError` or `RangeError`. */
export function checkedChoice<T extends string>(name: string, value: unknown, choices: readonly T[]): T {
  if (typeof value !== "string") throw new TypeError(`${name} must be a string, got ${typeName(value)}`);
  const found = choices.find((choice) => choice === value);
  if (found !== undefined) return found;
  const got = JSON.stringify(value.slice(0, SHOWN_CHARACTERS_MAX));
  throw new RangeError(`${name} must be one of ${choices.join(", ")}, got ${got}`);
}

/** `ttl` if it is a whole number of seconds a lease may last, else `TypeError` or `RangeError`. */
export function checkedTtl(ttl: unknown): number {
  if (typeof ttl !== "number") throw new TypeError(`ttl must be a number of seconds, got ${typeName(ttl)}`);
  if (Number.isInteger(ttl) && ttl >= TTL_SECONDS_MIN && ttl <= TTL_SECONDS_MAX) return ttl;
  throw new RangeError(`ttl must be a whole number from ${TTL_SECONDS_MIN} to ${TTL_SECONDS_MAX} seconds, got ${ttl}`);
}

/** `wait` in seconds (0 if left out, may be infinite), else `TypeError` or `RangeError`. */
export function checkedWait(wait: unknown): number {
  if (wait === undefined) return 0;
  if (typeof wait !== "number") throw new TypeError(`wait must be a number of seconds, got ${typeName(wait)}`);
  if (wait >= 0) return wait;
  throw new RangeError(`wait must be 0 or more seconds, or Infinity, got ${wait}`);
}

/** `holdAtLeast` in seconds (0 if left out), else `TypeError` or `RangeError`. */
export function checkedHoldAtLeast(seconds: unknown): number {
  if (seconds === undefined) return 0;
  if (typeof seconds !== "number") {
    throw new TypeError(`holdAtLeast must be a number of seconds, got ${typeName(seconds)}`);
  }
  if (seconds >= 0 && seconds <= TTL_SECONDS_MAX) return seconds;
  throw new RangeError(`holdAtLeast must be 0 to ${TTL_SECONDS_MAX} seconds, got ${seconds}`);
}

/** `body` if it can be called, else `TypeError`. */
export function checkedFunction<T>(name: string, body: T): T {
  if (typeof body === "function") return body;
  throw new TypeError(`${name} must be a function, got ${typeName(body)}`);
}

/** `options` if they are an object, else `TypeError`. */
export function optionsOf<T extends object>(options: T): T {
  if (typeof options === "object" && options !== null) return options;
  throw new TypeError(`options must be an object, got ${typeName(options)}`);
}

/** `value` as the caller spelled it if it is a UUID, else `TypeError` or `RangeError`, which do not show it (SDK-8). */
export function checkedUuid(name: string, value: unknown): string {
  if (typeof value !== "string") throw new TypeError(`${name} must be a UUID as a string, got ${typeName(value)}`);
  if (UUID.test(value)) return value;
  throw new RangeError(`${name} must be a UUID like 8-4-4-4-12 hex digits, got ${value.length} other characters`);
}

/** The id that the caller gave, or a new one: undefined and null mean "not given". */
export function givenOrNewUuid(name: string, value: unknown): string {
  return value === undefined || value === null ? newUuid() : checkedUuid(name, value);
}

/** `signal` if it is an `AbortSignal` or nothing, else `TypeError`. */
export function checkedSignal(signal: unknown): AbortSignal | undefined {
  if (signal === undefined || signal === null) return undefined;
  const like = signal as Partial<AbortSignal>;
  if (typeof like.aborted === "boolean" && typeof like.addEventListener === "function") return signal as AbortSignal;
  throw new TypeError(`signal must be an AbortSignal, got ${typeName(signal)}`);
}

/** A fresh owner token or request id. */
export function newUuid(): string {
  return crypto.randomUUID();
}

/** Whether `value` is an integer from 1 to 2^53 - 1. */
export function isFencingToken(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 1;
}

/** An RFC 3339 instant, digits below milliseconds dropped; `RangeError` for anything else (case 35). */
export function parseDate(text: string): Date {
  const match = DATE.exec(text);
  const wrong = (): RangeError => new RangeError(`not a date with a UTC offset: ${shown(text)}`);
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

/** The term an acquire's or renew's success granted; `ServerError` when the body does not say one. */
export function grantedTerm(answer: Answer, requestId: string): Term {
  return termOf(bodyOf(answer, requestId), answer, requestId);
}

/** The term of a held lock, or null for a free one; `ServerError` when the body does not say which. */
export function readTerm(answer: Answer, requestId: string): Term | null {
  const body = bodyOf(answer, requestId);
  if (body.held === false) return null;
  if (body.held !== true) throw malformed(answer, "held is neither true nor false", requestId);
  return termOf(body, answer, requestId);
}

/** The error that any answer other than the expected success is told as. */
export function refusalFrom(answer: Answer, requestId: string): VolcanoError {
  const body = objectIn(answer.text) ?? {};
  const { code, error } = body as { code?: unknown; error?: unknown };
  const told = typeof error === "string" && error !== "" ? shown(error) : `HTTP ${answer.status} without a reason`;
  return errorFor(answer.status, told, {
    code: typeof code === "string" ? code : null,
    retryAfter: retryAfterOf(answer.header("retry-after")),
    requestId,
  });
}

/** The JSON object that the answer's body is; `ServerError` if it is none. */
export function bodyOf(answer: Answer, requestId: string): Record<string, unknown> {
  const body = objectIn(answer.text);
  if (body === null) throw malformed(answer, "its body is not a JSON object", requestId);
  return body;
}

function objectIn(text: string): Record<string, unknown> | null {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null && !Array.isArray(body) ? (body as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

function termOf(body: Record<string, unknown>, answer: Answer, requestId: string): Term {
  const fencingToken = body.fencing_token;
  if (!isFencingToken(fencingToken) || !INTEGER.test(writtenValue(answer.text, "fencing_token"))) {
    throw malformed(answer, `fencing_token is not an integer from 1 to ${FENCING_TOKEN_MAX}`, requestId);
  }
  try {
    return { expiresAt: parseDate(body.expires_at as string), fencingToken };
  } catch {
    throw malformed(answer, "expires_at is not a date", requestId);
  }
}

/** The characters that stand for the last top-level field `name` of the JSON object `text`. */
function writtenValue(text: string, name: string): string {
  let depth = 0;
  let written = "";
  const tokens = text.match(JSON_TOKEN) ?? [];
  for (const [index, token] of tokens.entries()) {
    if (token === "{" || token === "[") depth += 1;
    else if (token === "}" || token === "]") depth -= 1;
    else if (depth === 1 && token === ":" && JSON.parse(tokens[index - 1] ?? '""') === name) {
      written = tokens[index + 1] ?? "";
    }
  }
  return written;
}

/** A success status whose body does not say what it must: no lock service answered. */
export function malformed(answer: Answer, why: string, requestId: string): ServerError {
  const kind = shown(answer.header("content-type") ?? "no content type");
  const message = `HTTP ${answer.status} is not an answer of a lock service: ${why} (${kind})`;
  return new ServerError(message, { status: answer.status, requestId });
}

/** Whole seconds; the date form, which the service never sends, counts as not told. */
function retryAfterOf(text: string | null): number | null {
  if (text === null || !/^\d+$/.test(text)) return null;
  return Math.min(Number(text), RETRY_AFTER_SECONDS_MAX);
}

/** Short, and without what a terminal would obey. */
function shown(text: string): string {
  return String(text)
    .slice(0, SHOWN_CHARACTERS_MAX)
    .replace(/[^\P{C}]|[\u2028\u2029]/gu, "?");
}

/** What came, for messages: its type alone, since it may hold a secret. */
export function typeName(value: unknown): string {
  return value === null ? "null" : typeof value;
}
