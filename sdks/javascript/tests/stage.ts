/** What most tests need: a client of a fake server behind a network that fails by script, under one moved clock. */

import { type AcquireResult, Client, type ClientOptions, type Lease } from "../src/index.ts";
import { FakeLocks, type Fault, type FaultyTransport, faultyFetch, ManualClock } from "../src/testing/index.ts";

export const KEY = "daily-rollup";
export const TTL = 30;
export const SERVICE_KEY = "sk-very-secret-service-key";
export const TOKEN = "4f83efc2-8fe7-42e8-8347-43493dc5bd8f";

export interface Stage {
  readonly clock: ManualClock;
  readonly server: FakeLocks;
  readonly network: FaultyTransport;
  readonly client: Client;
  /** Another client of the same server, over a network that does not fail. */
  readonly rival: Client;
}

export function stage(script: Iterable<Fault> = [], options: ClientOptions = {}): Stage {
  const clock = new ManualClock();
  const server = new FakeLocks(clock);
  const network = faultyFetch(server.fetch, clock, script);
  const client = new Client({
    apiUrl: "http://locks.test/base/",
    serviceKey: SERVICE_KEY,
    clock,
    fetch: (url, init) => network.fetch(url.replace("/base/", "/"), init),
    ...options,
  });
  return { clock, server, network, client, rival: server.client() };
}

/** The methods of what was sent, in order. */
export function methods(network: FaultyTransport): string {
  return network.seen.map((one) => one.method).join(" ");
}

/** A promise with its ends in hand. */
export function deferred<T = void>(): {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (reason: unknown) => void;
} {
  let resolve!: (value: T) => void;
  let reject!: (reason: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

/** The lease of an acquire that was granted. */
export function granted(result: AcquireResult): Lease {
  if (!result.acquired) throw new Error(`expected a lease: ${result.error ?? result.reason}`);
  return result.lease;
}

/** `value`, which is there. */
export function there<T>(value: T | null | undefined): T {
  if (value === null || value === undefined) throw new Error("expected a value");
  return value;
}
