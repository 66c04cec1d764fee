/**
 * Reads values of unknown origin, such as what a body threw. Nothing here throws, not even for a getter that throws or
 * a revoked proxy.
 */

/** Whether a value is an error, also one of another realm, such as a Jest or `vm` context (case 75). */
export function isError(value: unknown): value is Error {
  if (/^\[object (Error|DOMException)\]$/.test(tagOf(value))) return true;
  return ["name", "message", "stack"].every((name) => typeof readProperty(value, name) === "string");
}

/** `value[name]`; undefined if the value has none, or if reading it throws (a getter, a revoked proxy). */
export function readProperty(value: unknown, name: string | symbol): unknown {
  try {
    return Object(value)[name];
  } catch {
    return undefined;
  }
}

/** The tag of a value, such as `[object Error]`; empty if reading it throws. */
export function tagOf(value: unknown): string {
  try {
    return Object.prototype.toString.call(value);
  } catch {
    return "";
  }
}

/** The value as text. */
export function textOf(value: unknown): string {
  try {
    return String(value);
  } catch {
    return tagOf(value);
  }
}
