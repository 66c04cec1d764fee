/**
 * The client: combines settings, a clock and `fetch` behind `client.locks`.
 *
 * It opens no connection until its first request and needs no closing. No property holds the service key, so
 * `JSON.stringify` and `util.inspect` do not show it (SDK-8).
 */

import { type Clock, SystemClock } from "./clock.ts";
import { resolveConfig } from "./config.ts";
import { type Fetch, Transport } from "./http/transport.ts";
import { Locks } from "./locks.ts";
import { checkedOptions } from "./protocol/arguments.ts";
import { Operations } from "./protocol/operations.ts";

export interface ClientOptions {
  /** The service's address; defaults to `VOLCANO_API_URL`. */
  apiUrl?: string | undefined;
  /** The credential for the project's locks; defaults to `VOLCANO_SERVICE_KEY`. */
  serviceKey?: string | undefined;
  /** Time-out of one request; defaults to 10. A verb sends at most two requests. */
  timeoutSeconds?: number | undefined;
  /** The holder's label, shown to people; defaults to `host/pid`. */
  holder?: string | undefined;
  /** Sends requests; defaults to the runtime's `fetch`. */
  fetch?: Fetch | undefined;
  /** Source of time; defaults to a `SystemClock`. */
  clock?: Clock | undefined;
}

const OPTION_NAMES: Readonly<Record<keyof ClientOptions, true>> = {
  apiUrl: true,
  serviceKey: true,
  timeoutSeconds: true,
  holder: true,
  fetch: true,
  clock: true,
};
const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** A client of the lock service. The whole program may share one. */
export class Client {
  /** The operations on locks. */
  readonly locks: Locks;
  readonly #apiUrl: string;

  constructor(options: ClientOptions = {}) {
    rejectUnknownOptions(checkedOptions(options));
    const config = resolveConfig(options);
    const clock = options.clock ?? new SystemClock();
    this.#apiUrl = config.apiUrl;
    this.locks = new Locks(
      new Operations(new Transport(config, clock, resolveFetch(options.fetch)), clock),
      clock,
      config.timeoutSeconds,
    );
  }

  toJSON(): { apiUrl: string } {
    return { apiUrl: this.#apiUrl };
  }

  /** @internal */
  [INSPECT](): string {
    return `Client(${this.#apiUrl})`;
  }
}

/** Throws a `TypeError` for an unknown option, which would otherwise be ignored silently. */
function rejectUnknownOptions(options: object): void {
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(OPTION_NAMES, name));
  if (unknown === undefined) return;
  throw new TypeError(
    `unknown option ${JSON.stringify(unknown)}: a client takes ${Object.keys(OPTION_NAMES).join(", ")}`,
  );
}

/** Looks up the runtime's `fetch` at each request, since programs replace it to trace or to record. */
function resolveFetch(given: unknown): Fetch {
  if (given !== undefined && typeof given !== "function") throw new TypeError("fetch must be a function");
  if (given !== undefined) return given as Fetch;
  if (typeof globalThis.fetch !== "function") throw new TypeError("this runtime has no fetch: pass one");
  return (url, init) => globalThis.fetch(url, init);
}
