import { describe, expect, it } from "vitest";
import { BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN, Backoff } from "../../src/protocol/backoff.ts";

describe("SDK-11: back-off", () => {
  it("grows up to a bound with jitter, and starts over after a reset", () => {
    const backoff = new Backoff();
    const taken = Array.from({ length: 12 }, () => backoff.next(null));
    const firsts = Array.from({ length: 20 }, () => new Backoff().next(null));
    expect(new Set(firsts).size).toBeGreaterThan(10);
    for (const first of firsts) expect(first).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MIN);
    for (const first of firsts) expect(first).toBeLessThanOrEqual(2 * BACKOFF_SECONDS_MIN);
    expect(Math.max(...taken)).toBeLessThanOrEqual(BACKOFF_SECONDS_MAX);
    expect(taken.at(-1)).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MAX / 2);
    for (let turn = 0; turn < 20; turn += 1) {
      const delay = backoff.next(20);
      expect(delay).toBeGreaterThanOrEqual(20);
      expect(delay).toBeLessThanOrEqual(22);
    }
    expect(backoff.next(0)).toBeGreaterThan(BACKOFF_SECONDS_MIN);
    backoff.reset();
    expect(backoff.next(null)).toBeLessThanOrEqual(2 * BACKOFF_SECONDS_MIN);
  });
});
