import { describe, expect, it, vi } from "vitest";
import { LockHeldError, LockOwnershipLostError, PermissionDeniedError, TransportError } from "../src/index.ts";
import { createHarness, KEY, sentMethods, TOKEN, TTL } from "./harness.ts";

function thrower(): never {
  throw new Error("not to be read");
}

const { proxy: revoked, revoke } = Proxy.revocable({}, {});
revoke();
const UNREADABLE: readonly unknown[] = [
  revoked,
  new Proxy({}, { get: thrower, has: thrower }),
  Object.defineProperty({}, "name", { get: thrower }),
  Object.defineProperty(Object.assign(new Error("mine"), { name: "AbortError" }), "cause", { get: thrower }),
];

describe("SDK-24: throwOnError()", () => {
  it("has the same verbs, which resolve with the value", async () => {
    const { client } = createHarness();
    const locks = client.locks.throwOnError();
    const lease = await locks.acquire(KEY, { ttl: TTL });
    expect((await locks.renew(KEY, lease, { ttl: 60 })).fencingToken).toBe(lease.fencingToken);
    expect(await locks.get(KEY)).toMatchObject({ held: true, fencingToken: lease.fencingToken });
    expect(await locks.view(KEY)).toMatchObject({ key: KEY, held: true });
    expect(await locks.release(KEY, lease)).toBeUndefined();
    expect(await locks.forceRelease(KEY)).toBeUndefined();
    expect(await locks.withLock(KEY, { ttl: TTL }, ({ lease }) => lease.key)).toBe(KEY);
    expect(await locks.lead(KEY, { ttl: TTL }, () => "led")).toBe("led");
    expect(await locks.exclusive(KEY, { ttl: TTL }, (count: number) => count)(7)).toBe(7);
    for await (const { held } of locks.watch(KEY)) {
      expect(held).toBe(false);
      break;
    }
    expect((await locks.list(KEY).next()).value).toMatchObject({ key: KEY });
    const verbs = (object: object): string[] => [
      ...Object.getOwnPropertyNames(object),
      ...Object.getOwnPropertyNames(Object.getPrototypeOf(object)),
    ];
    expect([...verbs(locks), "throwOnError"].sort()).toEqual(verbs(client.locks).sort());
  });

  it("case 65: every failure rejects", async () => {
    const { client, transport } = createHarness();
    const locks = client.locks.throwOnError();
    const lease = await locks.acquire(KEY, { ttl: TTL });
    transport.otherwise = { status: 403 };
    const calls = [
      locks.acquire(KEY, { ttl: TTL }),
      locks.renew(KEY, lease),
      locks.release(KEY, lease),
      locks.get(KEY),
      locks.view(KEY),
      locks.forceRelease(KEY),
      locks.withLock(KEY, { ttl: TTL }, () => {}),
      locks.lead(KEY, { ttl: TTL }, () => {}),
    ];
    for (const call of calls) await expect(call).rejects.toBeInstanceOf(PermissionDeniedError);
  });

  it("case 65 case 77: withLock and lead reject with what the body threw, whatever it is", async () => {
    const { client } = createHarness();
    const locks = client.locks.throwOnError();
    const values = [new Error("mine"), new Response(null, { status: 302 }), "text", 0, null, undefined, ...UNREADABLE];
    for (const thrown of values) {
      const body = (): never => {
        throw thrown;
      };
      for (const call of [locks.withLock(KEY, { ttl: TTL }, body), locks.lead(KEY, { ttl: TTL }, body)]) {
        const rejected = await call.then(
          () => [],
          (reason: unknown) => [reason],
        );
        // `toBe` would read the value.
        expect(rejected[0] === thrown && rejected.length === 1).toBe(true);
      }
    }
  });

  it("case 77: an unreadable value is passed on, whether the body throws it at a loss or returns it", async () => {
    const { client, clock } = createHarness();
    for (const value of UNREADABLE) {
      const result = await client.locks.withLock(KEY, { ttl: TTL }, () => {
        clock.jump(TTL);
        throw value;
      });
      expect(result.error === value || result.error?.cause === value).toBe(true);
      clock.jump(2);
    }
    const result = new Proxy({}, { get: (_, name) => (name === "then" ? undefined : thrower()) });
    expect((await client.locks.withLock(KEY, { ttl: TTL }, () => result)).data === result).toBe(true);
  });

  it("contention rejects with its error, and a loss with the loss", async () => {
    const { client, clock, rival } = createHarness();
    const locks = client.locks.throwOnError();
    await expect(locks.withLock(KEY, { ttl: TTL }, () => clock.jump(TTL))).rejects.toBeInstanceOf(
      LockOwnershipLostError,
    );
    clock.jump(1);
    const held = await rival.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    const body = vi.fn();
    const { fencingToken, expiresAt } = held.lease ?? {};
    const known = { key: KEY, holder: expect.any(String), fencingToken, expiresAt, status: 409, code: "lock_held" };
    const refused = [locks.acquire(KEY, { ttl: TTL }), locks.withLock(KEY, { ttl: TTL }, body)];
    for (const call of refused) {
      const error = await call.catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(LockHeldError);
      expect(error).toMatchObject(known);
    }
    expect(body).not.toHaveBeenCalled();
    await rival.locks.forceRelease(KEY);
    await expect(locks.acquire(KEY, { ttl: TTL, token: TOKEN })).rejects.toBeInstanceOf(LockOwnershipLostError);
  });

  it("SDK-18: an uncertain acquire with the caller's token sends no release and can be recovered", async () => {
    const { client, transport } = createHarness(["drop_after_send", "drop_after_send"]);
    const locks = client.locks.throwOnError();
    const ids = { token: TOKEN, requestId: "139241af-f4e8-4bdb-8494-dc0804c380a7" };
    const uncertain = await locks.acquire(KEY, { ttl: TTL, ...ids }).catch((reason: unknown) => reason);
    expect(uncertain).toBeInstanceOf(TransportError);
    expect(uncertain).toMatchObject({ message: expect.stringContaining("same token and requestId") });
    expect((await locks.acquire(KEY, { ttl: TTL, ...ids })).token).toBe(TOKEN);
    expect(sentMethods(transport)).toBe("POST POST POST");
  });

  it("invalid arguments reject before anything is sent", async () => {
    const { client, transport } = createHarness();
    const locks = client.locks.throwOnError();
    await expect(locks.acquire("", { ttl: TTL })).rejects.toThrow(RangeError);
    await expect(locks.withLock(KEY, { ttl: TTL }, "body" as never)).rejects.toThrow(TypeError);
    await expect(locks.withLock(KEY, { ttl: TTL }, function* () {})).rejects.toThrow("generator");
    await expect(locks.lead(KEY, { ttl: TTL }, function* () {})).rejects.toThrow("generator");
    expect(transport.seen).toEqual([]);
  });
});
