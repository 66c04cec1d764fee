/**
 * Resolves the client's settings: options first, then `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY` if the runtime has
 * `process.env`. The address defaults to that of a server on this machine.
 *
 * A service key gives access to every lock of its project, so visitors must not be able to read it: a client refuses to
 * start in a browser page or worker (SDK-8). A page that a test renders inside Node (jsdom) does not count.
 */

import { VolcanoError } from "./errors.ts";

export const API_URL_VARIABLE = "VOLCANO_API_URL";
export const SERVICE_KEY_VARIABLE = "VOLCANO_SERVICE_KEY";
/** Set by `volcano-locks run` (case 64). */
const INSIDE_RUN_VARIABLE = "VOLCANO_LOCK_FENCING_TOKEN";
const INSIDE_RUN_MESSAGE =
  "`volcano-locks run` does not pass the service key to its command unless it is called with --pass-service-key";
export const HOLDER_CHARACTERS_MAX = 128;
export const TIMEOUT_SECONDS = 10;
/** Where a server started without options listens. */
export const API_URL = "http://127.0.0.1:7420";

const VISIBLE = /^[!-~]+$/;
const SHOWN_CHARACTERS_MAX = 200;

/** The validated settings of one client. */
export interface Config {
  readonly apiUrl: string;
  readonly serviceKey: string;
  readonly timeoutSeconds: number;
  readonly holder: string;
}

/** The runtime globals that are read. */
export interface RuntimeGlobals {
  readonly process?: unknown;
  readonly Deno?: unknown;
  readonly Bun?: unknown;
  readonly window?: unknown;
  readonly document?: unknown;
  readonly navigator?: unknown;
}

interface ProcessGlobal {
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly pid?: number;
  readonly type?: string;
  readonly browser?: boolean;
  readonly versions?: Readonly<Record<string, string | undefined>>;
  readonly getBuiltinModule?: (name: string) => { hostname?: () => string } | undefined;
}

/** Settings from options and environment. Throws a `TypeError` or `RangeError` that names the missing or wrong one. */
export function resolveConfig(
  options: { apiUrl?: unknown; serviceKey?: unknown; timeoutSeconds?: unknown; holder?: unknown },
  globals: RuntimeGlobals = globalThis as RuntimeGlobals,
): Config {
  if (inBrowser(globals)) {
    throw new VolcanoError("volcano-locks does not start in a browser, where every visitor could read the service key");
  }
  return {
    apiUrl: checkedUrl(setting("apiUrl", options.apiUrl, API_URL_VARIABLE, globals) ?? API_URL),
    serviceKey: checkedServiceKey(required("serviceKey", options.serviceKey, SERVICE_KEY_VARIABLE, globals)),
    timeoutSeconds: checkedTimeout(options.timeoutSeconds ?? TIMEOUT_SECONDS),
    holder: options.holder === undefined ? defaultHolder(globals) : checkedHolder(options.holder),
  };
}

/** Whether this is a browser page or worker, as opposed to a server runtime with some of the same globals. */
export function inBrowser(globals: RuntimeGlobals): boolean {
  const process = globals.process as ProcessGlobal | undefined;
  if (process?.type === "renderer") return true;
  if (globals.Deno !== undefined || globals.Bun !== undefined) return false;
  if (process?.versions?.node !== undefined && process.browser !== true) return false;
  if (globals.window !== undefined && globals.document !== undefined) return true;
  const agent = (globals.navigator as { userAgent?: unknown } | undefined)?.userAgent;
  return typeof agent === "string" && agent.startsWith("Mozilla/");
}

/** `host/pid` in visible characters, as far as the runtime reveals them without a permission prompt. */
export function defaultHolder(globals: RuntimeGlobals = globalThis as RuntimeGlobals): string {
  const process = globals.process as ProcessGlobal | undefined;
  const suffix = `/${process?.pid ?? 0}`;
  const host = hostName(globals, process).replace(/[^!-~]/g, "-") || "unknown";
  return host.slice(0, HOLDER_CHARACTERS_MAX - suffix.length) + suffix;
}

function hostName(globals: RuntimeGlobals, process: ProcessGlobal | undefined): string {
  if (globals.Deno !== undefined) return "deno";
  try {
    return process?.getBuiltinModule?.("node:os")?.hostname?.() ?? process?.env?.HOSTNAME ?? "unknown";
  } catch {
    return "unknown";
  }
}

function required(name: string, given: unknown, variable: string, globals: RuntimeGlobals): string {
  const value = setting(name, given, variable, globals);
  if (value !== undefined) return value;
  const insideRun = (globals.process as ProcessGlobal | undefined)?.env?.[INSIDE_RUN_VARIABLE] !== undefined;
  const why = insideRun ? `; ${INSIDE_RUN_MESSAGE}` : "";
  throw new TypeError(`${name} is missing: pass ${name} or set the environment variable ${variable}${why}`);
}

function setting(name: string, given: unknown, variable: string, globals: RuntimeGlobals): string | undefined {
  const value = given ?? (globals.process as ProcessGlobal | undefined)?.env?.[variable];
  if (value === undefined || value === "") return undefined;
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
