/** SDK-14 watching, SDK-15 listing and viewing. */

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { SILENCE_SECONDS_MAX } from "../src/features/watch.ts";
import type { Fetch } from "../src/http/transport.ts";
import { type Leadership, type LockView, ServerError, VolcanoError } from "../src/index.ts";
import { KEY, type Stage, stage, TTL, there } from "./stage.ts";

const unhandled = vi.fn();
beforeEach(() => {
  unhandled.mockReset();
  process.on("unhandledRejection", unhandled);
});
afterEach(() => {
  process.off("unhandledRejection", unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

/** A watch whose changes are written down. */
function watched(on: Stage, signal?: AbortSignal) {
  const changes: Leadership[] = [];
  const watch = on.client.locks.watch(KEY, { signal });
  const ended = (async () => {
    for await (const change of watch) changes.push(change);
  })();
  ended.catch(() => {});
  return { changes, watch, ended, held: () => changes.map((one) => one.held) };
}

function paths(on: Stage): string[] {
  return on.network.seen.map((one) => one.path.replace(`/locks/${KEY}`, "") || "view");
}

describe("SDK-14: watching who holds a lock", () => {
  it("tells how it is, and then each change", async () => {
    const on = stage();
    const { changes, watch, ended } = watched(on);
    await on.clock.settle();
    expect(changes).toEqual([{ held: false, holder: null, fencingToken: null, since: null }]);
    const since = on.clock.utcNow();
    const lease = there((await on.server.client({ holder: "b/1" }).locks.acquire(KEY, { ttl: TTL })).lease);
    const { fencingToken } = lease;
    await on.clock.advance(7);
    const free = on.clock.utcNow();
    await on.rival.locks.release(KEY, lease);
    await on.clock.settle();
    expect(changes.slice(1)).toEqual([
      { held: true, holder: "b/1", fencingToken, since },
      { held: false, holder: null, fencingToken: null, since: free },
    ]);
    expect(paths(on)).toEqual(["/events", "view"]);
    await watch.return?.();
    await ended;
    expect(on.clock.waiting).toBe(0);
  });

  it("begins with who holds it, since when", async () => {
    const on = stage();
    const since = on.clock.utcNow();
    const { fencingToken } = there((await on.server.client({ holder: "a/1" }).locks.acquire(KEY, { ttl: TTL })).lease);
    on.clock.jump(3);
    const watch = on.client.locks.watch(KEY);
    expect(await watch.next()).toEqual({ done: false, value: { held: true, holder: "a/1", fencingToken, since } });
    await watch.return?.();
  });

  it("renewals are no changes; expiry and force release are", async () => {
    const on = stage();
    const { held, watch } = watched(on);
    await on.clock.settle();
    const lease = there((await on.rival.locks.acquire(KEY, { ttl: 10 })).lease);
    await on.rival.locks.renew(KEY, lease);
    await on.clock.advance(10.9);
    expect(held()).toEqual([false, true]);
    await on.clock.advance(0.1);
    await on.rival.locks.acquire(KEY, { ttl: 10 });
    await on.rival.locks.forceRelease(KEY);
    await on.clock.settle();
    expect(held()).toEqual([false, true, false, true, false]);
    await watch.return?.();
  });

  it("goes on over a restart, resumes, reads again, and tells nothing twice", async () => {
    const on = stage();
    const { changes, watch } = watched(on);
    await on.rival.locks.acquire(KEY, { ttl: 600 });
    await on.clock.advance(10);
    on.server.restart();
    await on.clock.advance(10);
    expect(changes.map((one) => one.held).slice(-1)).toEqual([true]);
    expect(new Set(changes.map((one) => `${one.held} ${one.fencingToken}`)).size).toBe(changes.length);
    expect(
      on.network.seen.filter((one) => one.path.endsWith("/events")).map((one) => one.headers.get("Last-Event-ID")),
    ).toEqual([null, expect.stringMatching(/^\d+$/)]);
    await on.rival.locks.forceRelease(KEY);
    await on.clock.settle();
    expect(changes.at(-1)?.held).toBe(false);
    await watch.return?.();
  });

  it("a change while the connection was gone is told", async () => {
    const on = stage();
    const { held, watch } = watched(on);
    await on.clock.settle();
    on.network.otherwise = "drop_before_send";
    on.server.restart();
    await on.clock.advance(60);
    await on.rival.locks.acquire(KEY, { ttl: 600 });
    on.network.otherwise = "pass";
    await on.clock.advance(10);
    expect(held()).toEqual([false, true]);
    await watch.return?.();
  });

  it("rests between its tries, ever longer", async () => {
    const on = stage();
    on.network.otherwise = { status: 502 };
    const { watch } = watched(on);
    await on.clock.advance(60);
    expect(on.network.seen.length).toBeGreaterThan(60 / 5);
    expect(on.network.seen.length).toBeLessThan(30);
    await watch.return?.();
    expect(on.clock.waiting).toBe(0);
  });

  it("a stream that ends at once each time is not asked for in a tight loop", async () => {
    const on = stage();
    const { fetch } = on.network;
    Object.assign(on.network, {
      fetch: async (...args: Parameters<Fetch>) => {
        const answer = await fetch(...args);
        if (!args[0].endsWith("/events")) return answer;
        await answer.body?.cancel();
        return new Response("id: 1\n\n", { headers: { "Content-Type": "text/event-stream" } });
      },
    });
    const { watch, changes } = watched(on);
    await on.clock.advance(60);
    expect(changes).toHaveLength(1);
    expect(on.network.seen.length).toBeLessThan(60);
    await watch.return?.();
  });

  it("a stream that is silent is taken for broken", async () => {
    const on = stage();
    const ended = vi.fn();
    let streams = 0;
    const { fetch } = on.network;
    Object.assign(on.network, {
      fetch: (...args: Parameters<Fetch>) => {
        if (!args[0].endsWith("/events")) return fetch(...args);
        streams += 1;
        const begin = (controller: ReadableStreamDefaultController): void =>
          controller.enqueue(new TextEncoder().encode("id: 1\n\n"));
        const headers = { "Content-Type": "text/event-stream" };
        return Promise.resolve(new Response(new ReadableStream({ start: begin, cancel: ended }), { headers }));
      },
    });
    const { watch } = watched(on);
    await on.clock.advance(SILENCE_SECONDS_MAX - 1);
    expect([streams, ended.mock.calls.length]).toEqual([1, 0]);
    await on.clock.advance(2);
    expect([streams, ended.mock.calls.length]).toEqual([2, 1]);
    await watch.return?.();
    expect(on.clock.waiting).toBe(0);
  });

  it("a quiet stream of a service that lives is none that is silent", async () => {
    const on = stage();
    const { watch } = watched(on);
    await on.clock.advance(3_600);
    expect(paths(on)).toEqual(["/events", "view"]);
    await watch.return?.();
  });

  it.each([
    [401, "AuthenticationError"],
    [403, "PermissionDeniedError"],
    [404, "NotFoundError"],
  ])("what cannot get better is thrown: %i", async (status, name) => {
    const on = stage([{ status }]);
    await expect(on.client.locks.watch(KEY).next()).rejects.toMatchObject({ name });
    expect(on.clock.waiting).toBe(0);
  });

  it("a page instead of a stream is thrown", async () => {
    const on = stage([{ status: 200, body: "<html>", headers: { "Content-Type": "text/html" } }]);
    await expect(on.client.locks.watch(KEY).next()).rejects.toThrow(ServerError);
  });

  it("the overlap of what is read and what is told makes no change that was none", async () => {
    const on = stage();
    const { fetch } = on.network;
    Object.assign(on.network, {
      fetch: async (...args: Parameters<Fetch>) => {
        if (args[0].endsWith("view=full")) {
          // Between the stream's begin and the reading, the lock changes hands twice.
          const first = there((await on.rival.locks.acquire(KEY, { ttl: 600 })).lease);
          await on.rival.locks.release(KEY, first);
          await on.rival.locks.acquire(KEY, { ttl: 600 });
        }
        return fetch(...args);
      },
    });
    const { held, watch } = watched(on);
    await on.clock.settle();
    expect(held()).toEqual([true]);
    await watch.return?.();
  });

  /** What is told after the first reading, of a lock that is free by then. */
  async function toldBy(...blocks: string[]) {
    const on = stage();
    const { fetch } = on.network;
    Object.assign(on.network, {
      fetch: (...args: Parameters<Fetch>) => {
        if (!args[0].endsWith("/events")) return fetch(...args);
        const pieces = ["id: 1\n\n", ...blocks].map((block) => new TextEncoder().encode(block));
        const begin = (controller: ReadableStreamDefaultController): void =>
          pieces.forEach((piece) => void controller.enqueue(piece));
        const headers = { "Content-Type": "text/event-stream; charset=utf-8" };
        return Promise.resolve(new Response(new ReadableStream({ start: begin }), { headers }));
      },
    });
    const { changes, watch } = watched(on);
    await on.clock.advance(1);
    await watch.return?.();
    return { changes: changes.slice(1), readings: paths(on).filter((path) => path === "view").length };
  }

  const event = (kind: string, fencing_token: unknown, holder: string | null = null): string =>
    `event: ${kind}\ndata: ${JSON.stringify({ key: KEY, fencing_token, holder, at: "2026-01-01T00:00:00Z", why: "" })}\n\n`;

  it("an event about an older lease changes nothing, and a lease that has ended does not come back", async () => {
    const { changes } = await toldBy(
      event("acquired", 7, "a/1"),
      event("expired", 6),
      event("acquired", 5),
      event("renewed", 7, "a/1"),
      event("released", 7),
      event("renewed", 7, "a/1"),
      event("acquired", 7, "a/1"),
      event("expired", 8),
    );
    const since = new Date("2026-01-01T00:00:00Z");
    expect(changes).toEqual([
      { held: true, holder: "a/1", fencingToken: 7, since },
      { held: false, holder: null, fencingToken: null, since },
    ]);
  });

  it("a renewal of a lease whose begin was not told tells of it", async () => {
    const { changes } = await toldBy(event("renewed", 7, "a/1"));
    expect(changes).toEqual([{ held: true, holder: "a/1", fencingToken: 7, since: null }]);
  });

  it("events of other kinds are passed over, also kinds that are not known yet", async () => {
    const { changes, readings } = await toldBy(
      event("waiting", null),
      event("gave_up", null),
      "event: new\ndata: ?\n\n",
    );
    expect([changes, readings]).toEqual([[], 1]);
  });

  it.each([
    ["a reset", "event: reset\ndata: {}\n\n"],
    ["an event that is none", "event: acquired\ndata: {\n\n"],
    ["one without its token", event("acquired", null)],
    ["one that is too long", `data: ${"x".repeat(70_000)}\n\n`],
  ])("%s is followed by another reading", async (_, block) => {
    expect((await toldBy(block)).readings).toBeGreaterThan(1);
  });

  it("break ends the request", async () => {
    const on = stage();
    for await (const change of on.client.locks.watch(KEY)) {
      expect(change.held).toBe(false);
      expect(on.clock.waiting).toBeGreaterThan(0);
      break;
    }
    expect(on.clock.waiting).toBe(0);
  });

  it("return() ends a pending next(), which is done then", async () => {
    const on = stage();
    const watch = on.client.locks.watch(KEY);
    await watch.next();
    const pending = watch.next();
    await on.clock.settle();
    await watch.return?.();
    expect(await pending).toEqual({ done: true, value: undefined });
    expect(await watch.next()).toEqual({ done: true, value: undefined });
    expect(on.clock.waiting).toBe(0);
  });

  it("the caller's signal ends it with its reason, also while the loop's body runs, or before it began", async () => {
    const on = stage();
    const caller = new AbortController();
    const { ended, changes } = watched(on, caller.signal);
    await on.clock.settle();
    const reason = new Error("enough");
    caller.abort(reason);
    await expect(ended).rejects.toBe(reason);
    expect(changes).toHaveLength(1);
    expect(on.clock.waiting).toBe(0);
    const other = new AbortController();
    const watch = on.client.locks.watch(KEY, { signal: other.signal });
    await watch.next();
    other.abort(reason);
    expect(on.clock.waiting).toBe(0);
    await expect(watch.next()).rejects.toBe(reason);
    await expect(on.client.locks.watch(KEY, { signal: AbortSignal.abort(reason) }).next()).rejects.toBe(reason);
  });

  it("mistakes are thrown where they are made", () => {
    const { locks } = stage().client;
    expect(() => locks.watch("")).toThrow(RangeError);
    expect(() => locks.watch(KEY, { signal: 1 as unknown as AbortSignal })).toThrow(TypeError);
    expect(() => locks.list(".")).toThrow(RangeError);
    expect(() => locks.list(1 as unknown as string)).toThrow(TypeError);
    expect(() => locks.list("", { state: "some" as "all" })).toThrow("held, free");
    expect(() => locks.list("", null as unknown as object)).toThrow(TypeError);
  });
});

describe("SDK-15: listing and viewing", () => {
  async function keys(views: AsyncIterable<LockView>): Promise<string[]> {
    const found: string[] = [];
    for await (const { key } of views) found.push(key);
    return found;
  }

  it("goes through the locks in the order of their keys, by prefix and state", async () => {
    const { client, rival } = stage();
    for (const key of ["b:2", "a", "b:10", "c"]) await rival.locks.acquire(key, { ttl: TTL });
    await rival.locks.forceRelease("b:2");
    expect(await keys(client.locks.list())).toEqual(["a", "b:10", "b:2", "c"]);
    expect(await keys(client.locks.list("b"))).toEqual(["b:10", "b:2"]);
    expect(await keys(client.locks.list("b", { state: "free" }))).toEqual(["b:2"]);
    expect(await keys(client.locks.list("", { state: "held" }))).toEqual(["a", "b:10", "c"]);
  });

  it("asks for a page when the loop comes to it", async () => {
    const on = stage();
    for (let lock = 0; lock < 501; lock += 1) await on.rival.locks.acquire(`k${1_000 + lock}`, { ttl: TTL });
    const listing = on.client.locks.list("k");
    expect(on.network.seen).toHaveLength(0);
    for (let row = 0; row < 500; row += 1) await listing.next();
    expect(on.network.seen).toHaveLength(1);
    expect((await listing.next()).value).toMatchObject({ key: "k1500" });
    expect(await listing.next()).toEqual({ done: true, value: undefined });
    expect(on.network.seen).toHaveLength(2);
    expect(new Set(on.network.seen.map((one) => one.requestId)).size).toBe(2);
  });

  it("a row tells who, since when, until when, and who waits", async () => {
    const on = stage();
    const acquiredAt = on.clock.utcNow();
    const { locks } = on.server.client({ holder: "a/1" });
    const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    const waiting = on.rival.locks.acquire(KEY, { ttl: TTL, wait: 60 });
    await on.clock.advance(5);
    const { expiresAt, fencingToken } = there((await locks.renew(KEY, lease, { ttl: 60 })).lease);
    const view = {
      key: KEY,
      held: true,
      holder: "a/1",
      acquiredAt,
      renewedAt: on.clock.utcNow(),
      expiresAt,
      ttlSeconds: 60,
      fencingToken,
      waiters: 1,
    };
    expect(await on.client.locks.view(KEY)).toEqual({ view, error: null });
    expect((await on.client.locks.list().next()).value).toEqual(view);
    await locks.release(KEY, lease);
    await on.rival.locks.release(KEY, there((await waiting).lease));
    expect((await on.client.locks.view(KEY)).view).toMatchObject({ held: false, holder: null, expiresAt: null });
    expect((await on.client.locks.view("unknown")).view).toMatchObject({ held: false, fencingToken: null, waiters: 0 });
  });

  it("failures are thrown, after SDK-2's second try; of a view they are in the envelope", async () => {
    const on = stage(["reset", "unavailable", "reset"]);
    await expect(on.client.locks.list().next()).rejects.toMatchObject({ name: "UnavailableError" });
    expect((await on.client.locks.view(KEY)).error).toBeNull();
    on.network.script = [{ status: 403 }];
    expect(await on.client.locks.view(KEY)).toMatchObject({ view: null, error: { name: "PermissionDeniedError" } });
  });

  const row = {
    key: "k",
    held: true,
    holder: null,
    acquired_at: "2026-01-01T00:00:00Z",
    renewed_at: "2026-01-01T00:00:00Z",
    expires_at: "2026-01-01T00:00:30Z",
    ttl_seconds: 30,
    fencing_token: 1,
    waiters: 0,
  };

  const wrong: ReadonlyArray<[string, unknown]> = [
    ...Object.keys(row).map((name): [string, unknown] => [name, undefined]),
    ...["acquired_at", "renewed_at", "expires_at", "ttl_seconds", "fencing_token"].map((name): [string, unknown] => {
      return [name, null]; // of a lock that is held
    }),
    ["fencing_token", 2 ** 53],
    ["expires_at", "soon"],
  ];

  it.each(wrong)("an answer whose %s is %j is none", async (name, value) => {
    const on = stage();
    const body = JSON.stringify({ ...row, [name]: value });
    on.network.script = [{ status: 200, body }];
    expect((await on.client.locks.view(KEY)).error).toMatchObject({ name: "ServerError" });
    on.network.script = [{ status: 200, body: `{"items": [${body}], "next_cursor": null}` }];
    await expect(on.client.locks.list().next()).rejects.toThrow(`its ${name}`);
  });

  it.each([
    [{ items: {}, next_cursor: null }, "items"],
    [{ items: [null], next_cursor: null }, "held"],
    [{ items: [row] }, "next_cursor"],
  ])("a page %j is none", async (page, why) => {
    const on = stage([{ status: 200, body: JSON.stringify(page) }]);
    await expect(on.client.locks.list().next()).rejects.toThrow(why);
  });

  it("an empty page may be followed by another, but never by itself", async () => {
    const on = stage();
    const page = (next_cursor: string | null, ...items: object[]): { status: number; body: string } => ({
      status: 200,
      body: JSON.stringify({ items, next_cursor }),
    });
    on.network.script = [page("x"), page("y", row), page(null)];
    expect(await keys(on.client.locks.list())).toEqual(["k"]);
    on.network.script = [page("x", row), page("x", row)];
    await expect(keys(on.client.locks.list())).rejects.toThrow(VolcanoError);
  });
});
