/**
 * The test kit (SDK-10): `client.locks` without a server, under a clock the test moves.
 *
 *     const client = new FakeClient();
 *     const held = client.locks.withLock("nightly", { ttl: 30 }, async ({ signal }) => { … });
 *     await client.clock.advance(300);   // five minutes of renewals later …
 *     client.clock.jump(31);             // … the machine was suspended: the signal is aborted
 *
 * `FakeLocks` is the server alone, for any number of clients. `faultyFetch` injects faults between a client and a fake or
 * real server.
 */

export { ManualClock } from "./clock.ts";
export { FAKE_SERVICE_KEY, FAKE_URL, FakeClient, FakeLocks } from "./fake_server.ts";
export { type Fault, type FaultyTransport, faultyFetch, type Seen } from "./faulty_transport.ts";
