/** SDK-9: the error classes, and their match with the repository's table of error codes. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { errorFor } from "../src/errors.ts";
import {
  AuthenticationError,
  LockHeldError,
  ServerError,
  TransportError,
  UnavailableError,
  VolcanoError,
} from "../src/index.ts";
import { createHarness, defined, KEY, TTL } from "./harness.ts";

const TABLE = readFileSync(new URL("../../../spec/errors.yaml", import.meta.url), "utf8");

const ROWS = [...TABLE.matchAll(/^(\w+):\n {2}status: (\d+)$/gm)].map(
  ([, code, status]) => [code, Number(status)] as const,
);

const CLASSES: Readonly<Record<string, string>> = {
  400: "ValidationError",
  401: "AuthenticationError",
  403: "PermissionDeniedError",
  404: "NotFoundError",
  405: "VolcanoError",
  409: "ConflictError",
  413: "ValidationError",
  414: "VolcanoError",
  421: "VolcanoError",
  429: "RateLimitedError",
  431: "VolcanoError",
  500: "ServerError",
  503: "UnavailableError",
};

const BY_CODE: Readonly<Record<string, string>> = {
  lock_held: "LockHeldError",
  lock_ownership_lost: "LockOwnershipLostError",
  lock_record_damaged: "ServerError",
};

describe("SDK-9: every code of spec/errors.yaml", () => {
  it("is known", () => {
    expect(ROWS.length).toBeGreaterThan(15);
    expect(ROWS.length).toBe(TABLE.match(/^\w+:$/gm)?.length);
  });

  it.each(ROWS)("%s (%i) has its class", (code = "", status) => {
    expect(errorFor(status, "", { code }).name).toBe(BY_CODE[code] ?? CLASSES[status]);
  });
});

describe("SDK-9: errors", () => {
  it.each([
    [400, "invalid_ttl", "ValidationError"],
    [401, "invalid_credentials", "AuthenticationError"],
    [403, "missing_permission", "PermissionDeniedError"],
    [404, "not_found", "NotFoundError"],
    [409, "name_taken", "ConflictError"],
    [413, "request_too_large", "ValidationError"],
    [418, null, "VolcanoError"],
    [429, "lock_rate_limited", "RateLimitedError"],
    [500, "internal", "ServerError"],
    [502, null, "ServerError"],
  ])("%i %s is a %s with its details", async (status, code, name) => {
    const body = code === null ? "" : JSON.stringify({ error: "because", code });
    const { client, transport } = createHarness([{ status, body }]);
    const { error } = await client.locks.renew(
      KEY,
      defined((await createHarness().client.locks.acquire(KEY, { ttl: TTL })).lease),
    );
    expect(error).toBeInstanceOf(VolcanoError);
    expect(error).toMatchObject({ name, status, code, retryAfter: null, requestId: transport.seen[0]?.requestId });
  });

  it("403 is an AuthenticationError too", async () => {
    const { client } = createHarness([{ status: 403 }]);
    expect((await client.locks.get(KEY)).error).toBeInstanceOf(AuthenticationError);
  });

  it("instanceof distinguishes a class of this package from a program's own subclass", () => {
    class Mine extends TransportError {}
    const [mine, theirs] = [new Mine("mine"), new TransportError("theirs")];
    expect([mine instanceof Mine, mine instanceof TransportError, mine instanceof VolcanoError]).toEqual([
      true,
      true,
      true,
    ]);
    expect([theirs instanceof Mine, theirs instanceof ServerError, theirs instanceof Error]).toEqual([
      false,
      false,
      true,
    ]);
    for (const other of [null, undefined, "text", {}, new Error("x")]) {
      expect((other as unknown) instanceof VolcanoError).toBe(false);
    }
  });

  it("503 is an UnavailableError, which is a ServerError", async () => {
    const { client } = createHarness(["unavailable", "unavailable"]);
    const { error } = await client.locks.get(KEY);
    expect(error).toBeInstanceOf(UnavailableError);
    expect(error).toBeInstanceOf(ServerError);
    expect(error).toMatchObject({ status: 503, code: "lock_service_unavailable", retryAfter: 1 });
  });

  const current = { holder: "host/7", expires_at: "2026-07-20T14:00:10Z", fencing_token: 5 };
  const unknown = { holder: null, expiresAt: null, fencingToken: null };

  it.each([
    [
      current,
      { holder: "host/7", expiresAt: new Date("2026-07-20T14:00:10Z"), fencingToken: 5 },
      `the lock ${KEY} is held by host/7, until 2026-07-20T14:00:10.000Z unless renewed, fencing token 5`,
    ],
    [{}, unknown, `the lock ${KEY} is held by another caller`],
    [{ holder: null, expires_at: null, fencing_token: null }, unknown, `the lock ${KEY} is held by another caller`],
    [{ holder: 7, expires_at: "soon", fencing_token: 2 ** 53 }, unknown, `the lock ${KEY} is held by another caller`],
  ])("SDK-9 HTTP-28: a LockHeldError names the lock and its current lease: %j", async (fields, known, message) => {
    const body = JSON.stringify({ error: "lock held", code: "lock_held", ...fields });
    const { client } = createHarness([{ status: 409, body }]);
    const locks = client.locks.throwOnError();
    const error = await locks.acquire(KEY, { ttl: TTL }).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(LockHeldError);
    expect(error).toMatchObject({ key: KEY, message, status: 409, code: "lock_held", ...known });
  });

  it("a long message is shortened and control characters are replaced", async () => {
    const { client } = createHarness([
      { status: 400, body: JSON.stringify({ error: `\u001b[2J${"x".repeat(1_000)}` }) },
    ]);
    const message = (await client.locks.get(KEY)).error?.message ?? "";
    expect(message.startsWith("?[2J")).toBe(true);
    expect(message.length).toBe(300);
  });
});
