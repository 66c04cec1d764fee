/**
 * The test kit (SDK-10): `client.locks` without a server, under a clock the test moves.
 *
 *     const client = new FakeClient();
 *     const held = client.locks.withLock("nightly", { ttl: 30 }, async ({ signal }) => { … });
 *     await client.clock.advance(300);   // five minutes of renewals later …
 *     client.clock.jump(31);             // … the machine was suspended: the signal is aborted
 *
 * `FakeLocks` is the server part alone, shared by as many clients as a test wants; `flakyFetch` breaks the network
 * between a client and it, or a real server.
 */

export { ManualClock } from "./clock.ts";
export { FAKE_SERVICE_KEY, FAKE_URL, FakeClient, FakeLocks } from "./fake_server.ts";
export { type Fault, type FlakyNetwork, flakyFetch, type Seen } from "./faulty_transport.ts";
