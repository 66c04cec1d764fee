import { describe, expect, it } from "vitest";
import { FakeClient, FakeLocks, ManualClock } from "../../src/testing/index.ts";
import { defined, KEY, TTL } from "../harness.ts";

const OTHER = "0b7a2a51-9d0a-4d0c-8f7e-1de3a1c5b6aa";

describe("SDK-10: the fake server", () => {
  it("serves several clients, and its clock can move a real server's clock", async () => {
    const moves: number[] = [];
    const clock = new ManualClock({ onMove: (seconds) => moves.push(seconds) });
    const server = new FakeLocks(clock);
    const [one, two] = [server.client({ holder: "one" }), new FakeClient(clock, server)];
    expect(await one.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(await two.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: false });
    await clock.advance(3);
    expect(moves).toEqual([3]);
    expect((await server.fetch("http://x.test/elsewhere", { method: "PUT" })).status).toBe(404);
  });
});

describe("SDK-10: waits and events of the fake server", () => {
  function send(server: FakeLocks, method: string, path: string, token = OTHER, body?: object, signal?: AbortSignal) {
    const headers = { "X-Volcano-Lock-Token": token, "X-Volcano-Lock-Holder": `holder-${token.slice(0, 2)}` };
    const text = body === undefined ? {} : { body: JSON.stringify(body) };
    return server.fetch(`http://x.test${path}`, { method, headers, signal: signal ?? null, ...text });
  }

  const wait = (seconds: number): object => ({ ttl_seconds: TTL, wait_seconds: seconds });

  const token = (name: string): string => `${name}${OTHER.slice(2)}`;

  async function held(server: FakeLocks): Promise<() => Promise<unknown>> {
    const { locks } = server.client();
    const lease = defined((await locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    return () => locks.release(KEY, lease);
  }

  async function outcome(pending: Promise<Response>): Promise<string> {
    const response = await pending;
    const text = response.status === 204 ? "" : ((await response.json()) as { code?: string }).code;
    return `${response.status} ${text ?? ""}`.trim();
  }

  it("grants the queue in order, and skips waiters that disconnected or have no request", async () => {
    const server = new FakeLocks();
    const free = await held(server);
    const gone = new AbortController();
    const queue = ["aa", "bb", "cc"].map((name) =>
      send(server, "POST", `/locks/${KEY}/lease`, token(name), wait(name === "bb" ? 1 : 20), gone.signal),
    );
    const last = send(server, "POST", `/locks/${KEY}/lease`, token("dd"), wait(20));
    for (const one of queue) one.catch(() => {});
    await server.clock.advance(1);
    expect(await outcome(defined(queue[1]))).toBe("409 lock_held");
    gone.abort();
    await free();
    expect(await outcome(last)).toBe("201");
    await expect(queue[0]).rejects.toThrow();
    expect(server.clock.waiting).toBe(0);
  });

  it("the same token resumes its waiter, which stays queued for a while after its request ended", async () => {
    const server = new FakeLocks();
    const free = await held(server);
    const first = send(server, "POST", `/locks/${KEY}/lease`, token("aa"), wait(20));
    const behind = send(server, "POST", `/locks/${KEY}/lease`, token("bb"), wait(60));
    const again = send(server, "POST", `/locks/${KEY}/lease`, token("aa"), wait(1));
    expect(await outcome(first)).toBe("409 lock_held");
    await server.clock.advance(5);
    expect(await outcome(again)).toBe("409 lock_held");
    const third = send(server, "POST", `/locks/${KEY}/lease`, token("aa"), { ttl_seconds: 50, wait_seconds: 60 });
    await free();
    expect(await outcome(third)).toBe("201");
    expect((await server.client().locks.view(KEY)).view?.ttlSeconds).toBe(50);
    await server.clock.advance(60);
    expect(await outcome(behind)).toBe("201");
  });

  it("a release removes its token from the queue", async () => {
    const server = new FakeLocks();
    await held(server);
    const waiting = send(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    expect(await outcome(send(server, "DELETE", `/locks/${KEY}/lease`))).toBe("204");
    expect(await outcome(waiting)).toBe("409 lock_ownership_lost");
    expect(await outcome(send(server, "DELETE", `/locks/${KEY}/lease`))).toBe("409 lock_ownership_lost");
  });

  it("streams the events of the locks of a prefix, from any event on", async () => {
    const server = new FakeLocks();
    const { signal } = new AbortController();
    const stream = async (path: string, lastEventId?: string): Promise<() => Promise<string[]>> => {
      const headers: Record<string, string> = lastEventId === undefined ? {} : { "Last-Event-ID": lastEventId };
      const reader = defined(
        (await server.fetch(`http://x.test${path}`, { method: "GET", headers, signal })).body,
      ).getReader();
      const decoder = new TextDecoder();
      let reading = reader.read();
      return async () => {
        let text = "";
        for (;;) {
          const next = await Promise.race([reading, new Promise<null>((none) => setImmediate(none, null))]);
          if (next === null || next.done)
            return [...text.matchAll(/^(?:id|event): (.*)$/gm)].map(([, value = ""]) => value);
          text += decoder.decode(next.value);
          reading = reader.read();
        }
      };
    };
    const events = await stream("/locks/events?prefix=daily");
    expect(await events()).toEqual(["0"]);
    const client = server.client();
    await client.locks.acquire("other", { ttl: TTL });
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    await client.locks.renew(KEY, lease);
    const waiting = send(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    await client.locks.release(KEY, lease);
    await waiting;
    await server.clock.advance(TTL + 1);
    const kinds = ["2", "acquired", "3", "renewed", "4", "waiting", "5", "released", "6", "acquired", "7", "expired"];
    expect(await events()).toEqual(kinds);
    expect(await (await stream(`/locks/${KEY}/events`, "5"))()).toEqual(["5", ...kinds.slice(8)]);
    server.restart();
    expect(await (await stream("/locks/events?prefix=", "5"))()).toEqual(["8", "8", "reset"]);
    expect((await client.locks.get("events")).state?.held).toBe(false);
  });

  it("a restart responds 503 to waiters", async () => {
    const server = new FakeLocks();
    await held(server);
    const waiting = send(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    server.restart();
    expect(await outcome(waiting)).toBe("503 lock_service_unavailable");
    expect(server.clock.waiting).toBe(0);
  });
});
