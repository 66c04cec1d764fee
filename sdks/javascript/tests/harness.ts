/** The test harness: a client of a fake server with a faulty transport, under one manual clock. */

import { type AcquireResult, Client, type ClientOptions, type Lease } from "../src/index.ts";
import { FakeLocks, type Fault, type FaultyTransport, faultyFetch, ManualClock } from "../src/testing/index.ts";

export const KEY = "daily-rollup";
export const TTL = 30;
export const SERVICE_KEY = "sk-very-secret-service-key";
export const TOKEN = "4f83efc2-8fe7-42e8-8347-43493dc5bd8f";

export interface Harness {
  readonly clock: ManualClock;
  readonly server: FakeLocks;
  readonly transport: FaultyTransport;
  readonly client: Client;
  /** Another client of the same server, without faults. */
  readonly rival: Client;
}

export function createHarness(script: Iterable<Fault> = [], options: ClientOptions = {}): Harness {
  const clock = new ManualClock();
  const server = new FakeLocks(clock);
  const transport = faultyFetch(server.fetch, clock, script);
  const client = new Client({
    apiUrl: "http://locks.test/base/",
    serviceKey: SERVICE_KEY,
    clock,
    fetch: (url, init) => transport.fetch(url.replace("/base/", "/"), init),
    ...options,
  });
  return { clock, server, transport, client, rival: server.client() };
}

/** The methods of the requests sent, in order. */
export function sentMethods(transport: FaultyTransport): string {
  return transport.seen.map((one) => one.method).join(" ");
}

/** How many requests of one method were sent. */
export function sentCount({ transport }: Harness, method: string): number {
  return transport.seen.filter((one) => one.method === method).length;
}

/** A promise that the test resolves or rejects. */
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

/** The lease of a granted acquire. */
export function granted(result: AcquireResult): Lease {
  if (!result.acquired) throw new Error(`expected a lease: ${result.error ?? result.reason}`);
  return result.lease;
}

/** Asserts that `value` is defined. */
export function defined<T>(value: T | null | undefined): T {
  if (value === null || value === undefined) throw new Error("expected a value");
  return value;
}
