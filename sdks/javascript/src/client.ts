/**
 * The client: settings, a clock and `fetch` put together behind `client.locks`.
 *
 * It opens nothing until it is used and needs no closing. Its service key is in no property: neither
 * `JSON.stringify` nor `util.inspect` shows it (SDK-8).
 */

import { type Clock, SystemClock } from "./clock.ts";
import { resolveConfig } from "./config.ts";
import { type Fetch, Sender } from "./http/transport.ts";
import { Locks } from "./locks.ts";
import { optionsOf } from "./protocol/messages.ts";
import { Flows } from "./protocol/operations.ts";

export interface ClientOptions {
  /** The service's address; else `VOLCANO_API_URL`. */
  apiUrl?: string | undefined;
  /** Opens the project's locks; else `VOLCANO_SERVICE_KEY`. */
  serviceKey?: string | undefined;
  /** The most one request may take, 10 if left out. A verb sends at most two. */
  timeoutSeconds?: number | undefined;
  /** The label people see, `host/pid` if left out. */
  holder?: string | undefined;
  /** Sends requests; else the runtime's own. */
  fetch?: Fetch | undefined;
  /** Tells the time; else the runtime's own. */
  clock?: Clock | undefined;
}

const OPTIONS: Readonly<Record<keyof ClientOptions, true>> = {
  apiUrl: true,
  serviceKey: true,
  timeoutSeconds: true,
  holder: true,
  fetch: true,
  clock: true,
};
const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** A connection to the lock service. May be shared by the whole program. */
export class Client {
  /** The verbs. */
  readonly locks: Locks;
  readonly #apiUrl: string;

  constructor(options: ClientOptions = {}) {
    checkOptionNames(optionsOf(options));
    const config = resolveConfig(options);
    const clock = options.clock ?? new SystemClock();
    this.#apiUrl = config.apiUrl;
    this.locks = new Locks(
      new Flows(new Sender(config, clock, fetchOf(options.fetch)), clock),
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

/** `TypeError` for an unknown option: a misspelled one would be ignored without notice. */
function checkOptionNames(options: object): void {
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(OPTIONS, name));
  if (unknown === undefined) return;
  throw new TypeError(`unknown option ${JSON.stringify(unknown)}: a client takes ${Object.keys(OPTIONS).join(", ")}`);
}

/** The runtime's own is looked up at each request, since programs replace it to trace or to record. */
function fetchOf(given: unknown): Fetch {
  if (given !== undefined && typeof given !== "function") throw new TypeError("fetch must be a function");
  if (given !== undefined) return given as Fetch;
  if (typeof globalThis.fetch !== "function") throw new TypeError("this runtime has no fetch: pass one");
  return (url, init) => globalThis.fetch(url, init);
}
