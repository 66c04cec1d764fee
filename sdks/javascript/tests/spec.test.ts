/** What stands twice: the repository's table of error codes, and this client's classes. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { errorFor } from "../src/errors.ts";

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
  429: "RateLimitedError",
  431: "VolcanoError",
  500: "ServerError",
  503: "UnavailableError",
};
const CONFLICTS: Readonly<Record<string, string>> = {
  lock_held: "LockHeldError",
  lock_ownership_lost: "LockOwnershipLostError",
};

describe("SDK-9: every code of spec/errors.yaml", () => {
  it("is known", () => {
    expect(ROWS.length).toBeGreaterThan(15);
    expect(ROWS.length).toBe(TABLE.match(/^\w+:$/gm)?.length);
  });

  it.each(ROWS)("%s (%i) has its class", (code = "", status) => {
    expect(errorFor(status, "", { code }).name).toBe(CONFLICTS[code] ?? CLASSES[status]);
  });
});
