/**
 * Validates the arguments of the verbs before anything is sent. Each check returns the value, or throws a `TypeError` for
 * a wrong type and a `RangeError` for a wrong value. No message shows an owner token or another secret (SDK-8).
 */

import { tagOf } from "../unknown_values.ts";

export const TTL_SECONDS_MIN = 5;
export const TTL_SECONDS_MAX = 7_776_000;
export const REASON_CHARACTERS_MAX = 200;
const SHOWN_CHARACTERS_MAX = 300;
const KEY = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/;
/** Control and format characters, line separators and lone surrogates. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function checkedKey(key: unknown): string {
  if (typeof key !== "string") throw new TypeError(`key must be a string, got ${typeName(key)}`);
  if (KEY.test(key)) return key;
  const rule = "key must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit";
  throw new RangeError(`${rule}, got ${JSON.stringify(key.slice(0, SHOWN_CHARACTERS_MAX))}`);
}

/** A key prefix; the empty one matches every key. */
export function checkedPrefix(prefix: unknown): string {
  if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, got ${typeName(prefix)}`);
  if (prefix === "" || KEY.test(prefix)) return prefix;
  const got = JSON.stringify(prefix.slice(0, SHOWN_CHARACTERS_MAX));
  throw new RangeError(`prefix must be empty or the valid beginning of a key, got ${got}`);
}

export function checkedChoice<T extends string>(name: string, value: unknown, choices: readonly T[]): T {
  if (typeof value !== "string") throw new TypeError(`${name} must be a string, got ${typeName(value)}`);
  const found = choices.find((choice) => choice === value);
  if (found !== undefined) return found;
  const got = JSON.stringify(value.slice(0, SHOWN_CHARACTERS_MAX));
  throw new RangeError(`${name} must be one of ${choices.join(", ")}, got ${got}`);
}

export function checkedInstant(name: string, value: unknown): Date {
  if (!(value instanceof Date)) throw new TypeError(`${name} must be a Date, got ${typeName(value)}`);
  if (Number.isNaN(value.getTime())) throw new RangeError(`${name} must be a valid Date`);
  return value;
}

export function checkedTtl(ttl: unknown): number {
  if (typeof ttl !== "number") throw new TypeError(`ttl must be a number of seconds, got ${typeName(ttl)}`);
  if (Number.isInteger(ttl) && ttl >= TTL_SECONDS_MIN && ttl <= TTL_SECONDS_MAX) return ttl;
  throw new RangeError(`ttl must be a whole number from ${TTL_SECONDS_MIN} to ${TTL_SECONDS_MAX} seconds, got ${ttl}`);
}

/** The fencing token of one lease, or undefined if none is given (SDK-27). */
export function checkedFencingToken(value: unknown): number | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number") throw new TypeError(`fencingToken must be a number, got ${typeName(value)}`);
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new RangeError(`fencingToken must be a whole number from 1 to ${Number.MAX_SAFE_INTEGER}, got ${value}`);
}

/** The reason of a force release, or undefined if none or an empty one is given (SDK-27). */
export function checkedReason(reason: unknown): string | undefined {
  if (reason === undefined || reason === null || reason === "") return undefined;
  if (typeof reason !== "string") throw new TypeError(`reason must be a string, got ${typeName(reason)}`);
  if ([...reason].length <= REASON_CHARACTERS_MAX && !INVISIBLE.test(reason)) return reason;
  const rule = `reason must be at most ${REASON_CHARACTERS_MAX} characters without control and invisible format characters`;
  throw new RangeError(`${rule}, got ${JSON.stringify(reason.slice(0, SHOWN_CHARACTERS_MAX))}`);
}

/** Seconds to wait; defaults to 0, may be infinite. */
export function checkedWait(wait: unknown): number {
  if (wait === undefined) return 0;
  if (typeof wait !== "number") throw new TypeError(`wait must be a number of seconds, got ${typeName(wait)}`);
  if (wait >= 0) return wait;
  throw new RangeError(`wait must be 0 or more seconds, or Infinity, got ${wait}`);
}

/** Seconds to hold at least; defaults to 0. */
export function checkedHoldAtLeast(seconds: unknown): number {
  if (seconds === undefined) return 0;
  if (typeof seconds !== "number") {
    throw new TypeError(`holdAtLeast must be a number of seconds, got ${typeName(seconds)}`);
  }
  if (seconds >= 0 && seconds <= TTL_SECONDS_MAX) return seconds;
  throw new RangeError(`holdAtLeast must be 0 to ${TTL_SECONDS_MAX} seconds, got ${seconds}`);
}

/** Seconds between renewals; undefined for the client's own interval. */
export function checkedRenewEvery(seconds: unknown, ttlSeconds: number): number | undefined {
  if (seconds === undefined) return undefined;
  if (typeof seconds !== "number") {
    throw new TypeError(`renewEvery must be a number of seconds, got ${typeName(seconds)}`);
  }
  if (seconds >= 1 && seconds <= ttlSeconds / 3) return seconds;
  throw new RangeError(`renewEvery must be from 1 second to a third of the ttl of ${ttlSeconds}, got ${seconds}`);
}

/** A function whose body runs when it is called: not a generator function (SDK-16, case 44). */
export function checkedBody<T>(name: string, value: T): T {
  if (typeof value !== "function") throw new TypeError(`${name} must be a function, got ${typeName(value)}`);
  if (!/Generator/.test(tagOf(value))) return value;
  throw new TypeError(`${name} must not be a generator function: ${GENERATOR}`);
}

/** Returns a body's result; throws a `TypeError` for a generator, whose body has not run (SDK-16, case 44). */
export function rejectGenerator<T>(result: T): T {
  if (!/^\[object (Async)?Generator\]$/.test(tagOf(result))) return result;
  throw new TypeError(`a function that runs under a lock must not return a generator: ${GENERATOR}`);
}

const GENERATOR = "its body would run after the release; use an async function that awaits the work";

/** The names of all options of a type. */
export type OptionNames<T> = Readonly<Record<keyof T, true>>;

/** Checks that `options` is an object without unknown options, which would otherwise be ignored silently (SDK-9). */
export function checkedOptions<T extends object>(options: T, names: OptionNames<T>, owner: string): T {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`options must be an object, got ${typeName(options)}`);
  }
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(names, name));
  if (unknown === undefined) return options;
  throw new TypeError(`unknown option ${JSON.stringify(unknown)}: ${owner} takes ${Object.keys(names).join(", ")}`);
}

/** A UUID in the caller's spelling. The error message does not show the value, which may be a secret (SDK-8). */
export function checkedUuid(name: string, value: unknown): string {
  if (typeof value !== "string") throw new TypeError(`${name} must be a UUID as a string, got ${typeName(value)}`);
  if (UUID.test(value)) return value;
  throw new RangeError(`${name} must be a UUID (8-4-4-4-12 hex digits), got a string of ${value.length} characters`);
}

/** The given id, or a new one for undefined and null. */
export function givenOrNewUuid(name: string, value: unknown): string {
  return value === undefined || value === null ? newUuid() : checkedUuid(name, value);
}

export function checkedSignal(signal: unknown): AbortSignal | undefined {
  if (signal === undefined || signal === null) return undefined;
  const like = signal as Partial<AbortSignal>;
  if (typeof like.aborted === "boolean" && typeof like.addEventListener === "function") return signal as AbortSignal;
  throw new TypeError(`signal must be an AbortSignal, got ${typeName(signal)}`);
}

/** A new owner token or request id. */
export function newUuid(): string {
  return crypto.randomUUID();
}

/** The type of a value, for messages: the value itself may be a secret. */
export function typeName(value: unknown): string {
  return value === null ? "null" : typeof value;
}
