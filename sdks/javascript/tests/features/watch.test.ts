import { getEventListeners } from "node:events";
import { describe, expect, it, vi } from "vitest";
import { SILENCE_SECONDS_MAX } from "../../src/features/watch.ts";
import { type Fetch, type Leadership, ServerError } from "../../src/index.ts";
import { createHarness, defined, type Harness, KEY } from "../harness.ts";

/** Starts a watch and records its changes. */
function watched(harness: Harness, signal?: AbortSignal) {
  const changes: Leadership[] = [];
  const watch = harness.client.locks.watch(KEY, { signal });
  const ended = (async () => {
    for await (const change of watch) changes.push(change);
  })();
  ended.catch(() => {});
  return { changes, watch, ended, held: () => changes.map((one) => one.held) };
}

function paths(harness: Harness): string[] {
  return harness.transport.seen.map((one) => one.path.replace(`/locks/${KEY}`, "") || "view");
}

describe("SDK-14: watching who holds a lock", () => {
  it("survives a restart, resumes, reads again, and reports nothing twice", async () => {
    const harness = createHarness();
    const { changes, watch } = watched(harness);
    await harness.rival.locks.acquire(KEY, { ttl: 600 });
    await harness.clock.advance(10);
    harness.server.restart();
    await harness.clock.advance(10);
    expect(changes.map((one) => one.held).slice(-1)).toEqual([true]);
    expect(new Set(changes.map((one) => `${one.held} ${one.fencingToken}`)).size).toBe(changes.length);
    expect(
      harness.transport.seen
        .filter((one) => one.path.endsWith("/events"))
        .map((one) => one.headers.get("Last-Event-ID")),
    ).toEqual([null, expect.stringMatching(/^\d+$/)]);
    await harness.rival.locks.forceRelease(KEY);
    await harness.clock.settle();
    expect(changes.at(-1)?.held).toBe(false);
    await watch.return?.();
  });

  it("backs off between attempts", async () => {
    const harness = createHarness();
    harness.transport.otherwise = { status: 502 };
    const { watch } = watched(harness);
    await harness.clock.advance(60);
    expect(harness.transport.seen.length).toBeGreaterThan(60 / 5);
    expect(harness.transport.seen.length).toBeLessThan(30);
    await watch.return?.();
    expect(harness.clock.waiting).toBe(0);
  });

  it("a stream that always ends at once is not reopened in a tight loop", async () => {
    const harness = createHarness();
    const { fetch } = harness.transport;
    Object.assign(harness.transport, {
      fetch: async (...args: Parameters<Fetch>) => {
        const response = await fetch(...args);
        if (!args[0].endsWith("/events")) return response;
        await response.body?.cancel();
        return new Response("id: 1\n\n", { headers: { "Content-Type": "text/event-stream" } });
      },
    });
    const { watch, changes } = watched(harness);
    await harness.clock.advance(60);
    expect(changes).toHaveLength(1);
    expect(harness.transport.seen.length).toBeLessThan(60);
    await watch.return?.();
  });

  it("a silent stream counts as broken", async () => {
    const harness = createHarness();
    const ended = vi.fn();
    let streams = 0;
    const { fetch } = harness.transport;
    Object.assign(harness.transport, {
      fetch: (...args: Parameters<Fetch>) => {
        if (!args[0].endsWith("/events")) return fetch(...args);
        streams += 1;
        const start = (controller: ReadableStreamDefaultController): void =>
          controller.enqueue(new TextEncoder().encode("id: 1\n\n"));
        const headers = { "Content-Type": "text/event-stream" };
        return Promise.resolve(new Response(new ReadableStream({ start: start, cancel: ended }), { headers }));
      },
    });
    const { watch } = watched(harness);
    await harness.clock.advance(SILENCE_SECONDS_MAX - 1);
    expect([streams, ended.mock.calls.length]).toEqual([1, 0]);
    await harness.clock.advance(2);
    expect([streams, ended.mock.calls.length]).toEqual([2, 1]);
    await watch.return?.();
    expect(harness.clock.waiting).toBe(0);
  });

  it("a stream with comments only does not count as silent", async () => {
    const harness = createHarness();
    const { watch } = watched(harness);
    await harness.clock.advance(3_600);
    expect(paths(harness)).toEqual(["/events", "view"]);
    await watch.return?.();
  });

  it.each([
    [401, "AuthenticationError"],
    [403, "PermissionDeniedError"],
    [404, "NotFoundError"],
  ])("%i is thrown, since a retry cannot resolve it", async (status, name) => {
    const harness = createHarness([{ status }]);
    await expect(harness.client.locks.watch(KEY).next()).rejects.toMatchObject({ name });
    expect(harness.clock.waiting).toBe(0);
  });

  it("a page instead of a stream is thrown", async () => {
    const harness = createHarness([{ status: 200, body: "<html>", headers: { "Content-Type": "text/html" } }]);
    await expect(harness.client.locks.watch(KEY).next()).rejects.toThrow(ServerError);
  });

  it("the overlap of view and events reports no false change", async () => {
    const harness = createHarness();
    const { fetch } = harness.transport;
    Object.assign(harness.transport, {
      fetch: async (...args: Parameters<Fetch>) => {
        if (args[0].endsWith("view=full")) {
          // Between the start of the stream and the read, the lock changes hands twice.
          const first = defined((await harness.rival.locks.acquire(KEY, { ttl: 600 })).lease);
          await harness.rival.locks.release(KEY, first);
          await harness.rival.locks.acquire(KEY, { ttl: 600 });
        }
        return fetch(...args);
      },
    });
    const { held, watch } = watched(harness);
    await harness.clock.settle();
    expect(held()).toEqual([true]);
    await watch.return?.();
  });

  /** The changes that the events of `blocks` cause after the first read of a free lock, and the number of reads. */
  async function changesFrom(...blocks: string[]) {
    const harness = createHarness();
    const { fetch } = harness.transport;
    Object.assign(harness.transport, {
      fetch: (...args: Parameters<Fetch>) => {
        if (!args[0].endsWith("/events")) return fetch(...args);
        const pieces = ["id: 1\n\n", ...blocks].map((block) => new TextEncoder().encode(block));
        const start = (controller: ReadableStreamDefaultController): void =>
          pieces.forEach((piece) => void controller.enqueue(piece));
        const headers = { "Content-Type": "text/event-stream; charset=utf-8" };
        return Promise.resolve(new Response(new ReadableStream({ start }), { headers }));
      },
    });
    const { changes, watch } = watched(harness);
    await harness.clock.advance(1);
    await watch.return?.();
    return { changes: changes.slice(1), readings: paths(harness).filter((path) => path === "view").length };
  }

  const event = (kind: string, fencing_token: unknown, holder: string | null = null): string =>
    `event: ${kind}\ndata: ${JSON.stringify({ key: KEY, fencing_token, holder, at: "2026-01-01T00:00:00Z", why: "" })}\n\n`;

  it("an event about an older lease changes nothing, and an ended lease does not return", async () => {
    const { changes } = await changesFrom(
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

  it("a renewal of an unknown lease reports its holder", async () => {
    const { changes } = await changesFrom(event("renewed", 7, "a/1"));
    expect(changes).toEqual([{ held: true, holder: "a/1", fencingToken: 7, since: null }]);
  });

  it("events of other kinds are skipped, unknown ones too", async () => {
    const { changes, readings } = await changesFrom(
      event("waiting", null),
      event("gave_up", null),
      "event: new\ndata: ?\n\n",
    );
    expect([changes, readings]).toEqual([[], 1]);
  });

  it.each([
    ["a reset", "event: reset\ndata: {}\n\n"],
    ["a malformed event", "event: acquired\ndata: {\n\n"],
    ["an event without its token", event("acquired", null)],
    ["an event that is too long", `data: ${"x".repeat(70_000)}\n\n`],
  ])("after %s the watch reads the view again", async (_, block) => {
    expect((await changesFrom(block)).readings).toBeGreaterThan(1);
  });

  it("break ends the request", async () => {
    const harness = createHarness();
    for await (const change of harness.client.locks.watch(KEY)) {
      expect(change.held).toBe(false);
      expect(harness.clock.waiting).toBeGreaterThan(0);
      break;
    }
    expect(harness.clock.waiting).toBe(0);
  });

  it("return() ends a pending next()", async () => {
    const harness = createHarness();
    const watch = harness.client.locks.watch(KEY);
    await watch.next();
    const pending = watch.next();
    await harness.clock.settle();
    await watch.return?.();
    expect(await pending).toEqual({ done: true, value: undefined });
    expect(await watch.next()).toEqual({ done: true, value: undefined });
    expect(harness.clock.waiting).toBe(0);
  });

  it("the caller's signal ends the watch with its reason: while it waits, while the loop's body runs, and before it starts", async () => {
    const harness = createHarness();
    const caller = new AbortController();
    const { ended, changes } = watched(harness, caller.signal);
    await harness.clock.settle();
    const reason = new Error("enough");
    caller.abort(reason);
    await expect(ended).rejects.toBe(reason);
    expect(changes).toHaveLength(1);
    expect(harness.clock.waiting).toBe(0);
    const other = new AbortController();
    const watch = harness.client.locks.watch(KEY, { signal: other.signal });
    await watch.next();
    other.abort(reason);
    expect(harness.clock.waiting).toBe(0);
    await expect(watch.next()).rejects.toBe(reason);
    await expect(harness.client.locks.watch(KEY, { signal: AbortSignal.abort(reason) }).next()).rejects.toBe(reason);
  });

  it("takes the caller's signal at the first next: a watch that is never iterated leaves no listener", async () => {
    const harness = createHarness();
    const caller = new AbortController();
    const listeners = (): number => getEventListeners(caller.signal, "abort").length;
    const watch = harness.client.locks.watch(KEY, { signal: caller.signal });
    expect(listeners()).toBe(0);
    await watch.next();
    expect(listeners()).toBe(1);
    await watch.return?.();
    expect(listeners()).toBe(0);
    await watch.next();
    expect(listeners()).toBe(0);
  });

  it("throw() ends the request and rejects with its error", async () => {
    const harness = createHarness();
    const watch = harness.client.locks.watch(KEY);
    await watch.next();
    const mine = new Error("mine");
    await expect(watch.throw?.(mine)).rejects.toBe(mine);
    expect(await watch.next()).toEqual({ done: true, value: undefined });
    expect(harness.clock.waiting).toBe(0);
  });
});
