import { describe, expect, it } from "vitest";
import { ServerError } from "../../src/index.ts";
import { parseDate } from "../../src/protocol/messages.ts";
import { createHarness, KEY, sentMethods, TTL } from "../harness.ts";

describe("SDK-7: numbers and dates", () => {
  it.each([
    ["2026-07-20T14:00:10Z", ".000"],
    ["2026-07-20t14:00:10z", ".000"],
    ["2026-07-20 14:00:10.1Z", ".100"],
    ["2026-07-20T14:00:10.123Z", ".123"],
    ["2026-07-20T14:00:10.123456Z", ".123"],
    ["2026-07-20T14:00:10.123456789Z", ".123"],
    ["2026-07-20T14:00:10+00:00", ".000"],
    ["2026-07-20T16:30:10.5+02:30", ".500"],
    ["2026-07-20T06:00:10.999999-0800", ".999"],
  ])("case 35: %s parses", (text, fraction) => {
    expect(parseDate(text).toISOString()).toBe(`2026-07-20T14:00:10${fraction}Z`);
  });

  it.each([
    "",
    "2026-07-20",
    "2026-07-20T14:00:10",
    "2026-02-30T00:00:00Z",
    "2026-13-01T00:00:00Z",
    "2026-07-20T24:00:00Z",
    "2026-07-20T14:00:60Z",
    "2026-07-20T14:00:10.1234567890Z",
    "2026-07-20T14:00:10+24:00",
    "2026-07-20T14:00:10Z\n",
    "２026-07-20T14:00:10Z",
  ])("case 35: %j does not parse", (text) => {
    expect(() => parseDate(text)).toThrow(RangeError);
  });

  const bodyWith = (token: string, more = ""): string =>
    `{${more}"held":true,"expires_at":"2026-07-20T14:00:10Z","fencing_token":${token}}`;

  it.each(["1", "1784684410123", "9007199254740991"])("case 34: fencing token %s is accepted", async (token) => {
    const { client } = createHarness([{ status: 200, body: bodyWith(token) }]);
    expect((await client.locks.get(KEY)).state?.fencingToken).toBe(Number(token));
  });

  it.each([
    "9007199254740992",
    "9007199254740993",
    "9007199254740990.6",
    "18446744073709551615",
    "0",
    "-1",
    "17.0",
    "1e3",
    "true",
    '"17"',
    "null",
  ])("case 34: fencing token %s is refused", async (token) => {
    const { client } = createHarness([{ status: 200, body: bodyWith(token) }]);
    expect((await client.locks.get(KEY)).error).toMatchObject({ name: "ServerError" });
  });

  it("case 34: only the field itself is checked, not other occurrences in the response", async () => {
    const more = String.raw`"note":"\"fencing_token\":1.5","more":{"fencing_token":99999999999999999999},`;
    const { client } = createHarness([{ status: 200, body: bodyWith("7", more) }]);
    expect((await client.locks.get(KEY)).state?.fencingToken).toBe(7);
  });
});

describe("malformed responses", () => {
  const page = { status: 200, body: "<html>", headers: { "Content-Type": "text/html" } };

  it.each([
    ["a page", page],
    ["a list", { status: 200, body: "[]" }],
    ["no date", { status: 200, body: '{"held":true,"expires_at":"soon","fencing_token":1}' }],
    ["neither", { status: 200, body: '{"held":"yes"}' }],
    ["a redirect", { status: 302, headers: { Location: "http://evil.test/" } }],
    ["another 2xx", { status: 204 }],
  ])("%s is a ServerError, never a state", async (_, fault) => {
    const { client } = createHarness([fault]);
    const { state, error } = await client.locks.get(KEY);
    expect(state).toBeNull();
    expect(error).toBeInstanceOf(ServerError);
  });

  it("an acquire that gets a page is released", async () => {
    const { client, transport } = createHarness([{ ...page, status: 201 }]);
    expect((await client.locks.acquire(KEY, { ttl: TTL })).error).toMatchObject({ status: 201, code: null });
    expect(sentMethods(transport)).toBe("POST DELETE");
  });
});
