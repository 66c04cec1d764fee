/**
 * Where the service is and what opens it: arguments first, then `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY` where the
 * runtime has `process.env`.
 *
 * A service key opens every lock of its project, so it must not be where visitors can read it: a client refuses to
 * start in a browser's page or worker (SDK-8). A page that a test draws inside Node (jsdom) is none.
 */

import { VolcanoError } from "./errors.ts";

export const API_URL_VARIABLE = "VOLCANO_API_URL";
export const SERVICE_KEY_VARIABLE = "VOLCANO_SERVICE_KEY";
export const HOLDER_CHARACTERS_MAX = 128;
export const TIMEOUT_SECONDS = 10;

const VISIBLE = /^[!-~]+$/;
const SHOWN_CHARACTERS_MAX = 200;

/** One client's settings, checked. */
export interface Config {
  readonly apiUrl: string;
  readonly serviceKey: string;
  readonly timeoutSeconds: number;
  readonly holder: string;
}

/** What of a runtime's globals is looked at. */
export interface Scope {
  readonly process?: unknown;
  readonly Deno?: unknown;
  readonly Bun?: unknown;
  readonly window?: unknown;
  readonly document?: unknown;
  readonly navigator?: unknown;
}

interface Process {
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly pid?: number;
  readonly type?: string;
  readonly browser?: boolean;
  readonly versions?: Readonly<Record<string, string | undefined>>;
  readonly getBuiltinModule?: (name: string) => { hostname?: () => string } | undefined;
}

/** Settings from arguments and environment; `TypeError` or `RangeError` names what is missing or wrong. */
export function resolveConfig(
  given: { apiUrl?: unknown; serviceKey?: unknown; timeoutSeconds?: unknown; holder?: unknown },
  scope: Scope = globalThis as Scope,
): Config {
  if (inBrowser(scope)) {
    throw new VolcanoError("volcano-locks does not start in a browser: everybody there could read the service key");
  }
  return {
    apiUrl: checkedUrl(found("apiUrl", given.apiUrl, API_URL_VARIABLE, scope)),
    serviceKey: checkedServiceKey(found("serviceKey", given.serviceKey, SERVICE_KEY_VARIABLE, scope)),
    timeoutSeconds: checkedTimeout(given.timeoutSeconds ?? TIMEOUT_SECONDS),
    holder: given.holder === undefined ? defaultHolder(scope) : checkedHolder(given.holder),
  };
}

/** Whether this is a browser's page or worker, and not a server runtime that has some of its names. */
export function inBrowser(scope: Scope): boolean {
  const process = scope.process as Process | undefined;
  if (process?.type === "renderer") return true;
  if (scope.Deno !== undefined || scope.Bun !== undefined) return false;
  if (process?.versions?.node !== undefined && process.browser !== true) return false;
  if (scope.window !== undefined && scope.document !== undefined) return true;
  const agent = (scope.navigator as { userAgent?: unknown } | undefined)?.userAgent;
  return typeof agent === "string" && agent.startsWith("Mozilla/");
}

/** `host/pid` in visible characters, as far as the runtime tells them without being asked for a permission. */
export function defaultHolder(scope: Scope = globalThis as Scope): string {
  const process = scope.process as Process | undefined;
  const tail = `/${process?.pid ?? 0}`;
  const host = hostName(scope, process).replace(/[^!-~]/g, "-") || "unknown";
  return host.slice(0, HOLDER_CHARACTERS_MAX - tail.length) + tail;
}

function hostName(scope: Scope, process: Process | undefined): string {
  if (scope.Deno !== undefined) return "deno";
  try {
    return process?.getBuiltinModule?.("node:os")?.hostname?.() ?? process?.env?.HOSTNAME ?? "unknown";
  } catch {
    return "unknown";
  }
}

function found(name: string, given: unknown, variable: string, scope: Scope): string {
  const value = given ?? (scope.process as Process | undefined)?.env?.[variable];
  if (value === undefined || value === "") {
    throw new TypeError(`${name} is missing: pass ${name} or set the environment variable ${variable}`);
  }
  if (typeof value !== "string") throw new TypeError(`${name} must be a string, got ${typeof value}`);
  return value;
}

function checkedUrl(text: string): string {
  const url = parsedUrl(text);
  if (url !== null && (url.username !== "" || url.password !== "")) {
    throw new RangeError("apiUrl must not contain a user name or password");
  }
  if (url === null || !/^https?:$/.test(url.protocol) || !VISIBLE.test(text)) {
    const got = JSON.stringify(text.slice(0, SHOWN_CHARACTERS_MAX));
    throw new RangeError(`apiUrl must be like https://locks.example.com, got ${got}`);
  }
  if (url.search !== "" || url.hash !== "")
    throw new RangeError("apiUrl must end with its path: no query, no fragment");
  return text.replace(/[/?#]+$/, "");
}

function parsedUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

function checkedServiceKey(serviceKey: string): string {
  if (VISIBLE.test(serviceKey)) return serviceKey;
  throw new RangeError("serviceKey must be visible ASCII characters without spaces or line ends");
}

function checkedTimeout(seconds: unknown): number {
  if (typeof seconds !== "number") throw new TypeError(`timeoutSeconds must be a number, got ${typeof seconds}`);
  if (seconds > 0 && seconds < Number.POSITIVE_INFINITY) return seconds;
  throw new RangeError(`timeoutSeconds must be above 0 and finite, got ${seconds}`);
}

function checkedHolder(holder: unknown): string {
  if (typeof holder !== "string") throw new TypeError(`holder must be a string, got ${typeof holder}`);
  if (holder.length <= HOLDER_CHARACTERS_MAX && VISIBLE.test(holder)) return holder;
  const got = JSON.stringify(holder.slice(0, SHOWN_CHARACTERS_MAX));
  throw new RangeError(`holder must be 1 to ${HOLDER_CHARACTERS_MAX} visible ASCII characters, got ${got}`);
}
