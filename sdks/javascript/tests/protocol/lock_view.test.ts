import { describe, expect, it } from "vitest";
import { createHarness, KEY } from "../harness.ts";

describe("SDK-15: malformed views and pages", () => {
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
    ["queue", null],
    ["queue", ["ann"]],
  ];

  it.each(wrong)("a view whose %s is %j is malformed", async (name, value) => {
    const harness = createHarness();
    const body = JSON.stringify({ ...row, [name]: value });
    harness.transport.script = [{ status: 200, body }];
    expect((await harness.client.locks.view(KEY)).error).toMatchObject({ name: "ServerError" });
    harness.transport.script = [{ status: 200, body: `{"items": [${body}], "next_cursor": null}` }];
    await expect(harness.client.locks.list().next()).rejects.toThrow(`its ${name}`);
  });

  it("LIST-9: a view has the labels of the first waiters", async () => {
    const queue = [
      { holder: "ann", since: "2026-01-01T00:00:01Z" },
      { holder: null, since: "2026-01-01T00:00:02Z" },
    ];
    const { client } = createHarness([{ status: 200, body: JSON.stringify({ ...row, waiters: 2, queue }) }]);
    expect((await client.locks.view(KEY)).view?.queue).toEqual(["ann", null]);
    const { client: older } = createHarness([{ status: 200, body: JSON.stringify(row) }]);
    expect((await older.locks.view(KEY)).view?.queue).toEqual([]);
  });

  it.each([
    [{ items: {}, next_cursor: null }, "items"],
    [{ items: [null], next_cursor: null }, "held"],
    [{ items: [row] }, "next_cursor"],
  ])("the page %j is malformed", async (page, why) => {
    const harness = createHarness([{ status: 200, body: JSON.stringify(page) }]);
    await expect(harness.client.locks.list().next()).rejects.toThrow(why);
  });
});
