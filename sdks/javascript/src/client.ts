/**
 * The client: combines settings, a clock and a sender of requests behind `client.locks`.
 *
 * It opens no connection until its first request and needs no closing. No property holds the service key, so
 * `JSON.stringify` and `util.inspect` do not show it (SDK-8).
 */

import { type Clock, SystemClock } from "./clock.ts";
import { resolveConfig } from "./config.ts";
import { createFetchSender, type Fetch } from "./http/fetch_sender.ts";
import type { Sender } from "./http/sender.ts";
import { Transport } from "./http/transport.ts";
import { Locks } from "./locks.ts";
import { checkedLogger, Log, type Logger } from "./log.ts";
import { createDefaultSender } from "./platform.ts";
import { checkedOptions, type OptionNames } from "./protocol/arguments.ts";
import { Operations } from "./protocol/operations.ts";

export interface ClientOptions {
  /** The service's address; defaults to `VOLCANO_API_URL`, then to `http://127.0.0.1:7420`. */
  apiUrl?: string | undefined;
  /** The credential for the project's locks; defaults to `VOLCANO_SERVICE_KEY`. */
  serviceKey?: string | undefined;
  /** Time-out of one request; defaults to 10. A verb sends at most two requests. */
  timeoutSeconds?: number | undefined;
  /** The holder's label, shown to people; defaults to `host/pid`. */
  holder?: string | undefined;
  /** Sends requests; defaults to `node:http` in Node, and to the runtime's `fetch` elsewhere. */
  fetch?: Fetch | undefined;
  /** Gets a line about each acquire, renewal, release, wait and loss, such as `console`; defaults to none. */
  logger?: Logger | undefined;
  /** Source of time; defaults to a `SystemClock`. */
  clock?: Clock | undefined;
}

const OPTION_NAMES: OptionNames<ClientOptions> = {
  apiUrl: true,
  serviceKey: true,
  timeoutSeconds: true,
  holder: true,
  fetch: true,
  logger: true,
  clock: true,
};
const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/**
 * A client of the lock service. The whole program may share one.
 *
 * @example
 * ```ts
 * const client = new Client(); // reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
 * const { acquired, error } = await client.locks.withLock("daily-rollup", { ttl: 30 }, rollup);
 * ```
 */
export class Client {
  /** The operations on locks. */
  readonly locks: Locks;
  readonly #apiUrl: string;

  constructor(options: ClientOptions = {}) {
    checkedOptions(options, OPTION_NAMES, "a client");
    const config = resolveConfig(options);
    const clock = options.clock ?? new SystemClock();
    const log = new Log(checkedLogger(options.logger));
    this.#apiUrl = config.apiUrl;
    const transport = new Transport(config, clock, createSender(options.fetch, config.apiUrl));
    this.locks = new Locks(new Operations(transport, clock, log), clock, config.timeoutSeconds);
  }

  toJSON(): { apiUrl: string } {
    return { apiUrl: this.#apiUrl };
  }

  /** @internal */
  [INSPECT](): string {
    return `Client(${this.#apiUrl})`;
  }
}

function createSender(fetch: unknown, apiUrl: string): Sender {
  if (fetch === undefined) return createDefaultSender(apiUrl);
  if (typeof fetch !== "function") throw new TypeError("fetch must be a function");
  return createFetchSender(fetch as Fetch, apiUrl);
}
