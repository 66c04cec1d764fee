import { describe, expect, it, vi } from "vitest";
import { waitUntil } from "../../src/clock.ts";
import { ManualClock } from "../../src/testing/index.ts";

describe("ManualClock", () => {
  it("stops at each timer", async () => {
    const clock = new ManualClock();
    const seen: number[] = [];
    const again = (): void => {
      seen.push(clock.now());
      clock.at(clock.now() + 10, again);
    };
    clock.at(clock.now() + 10, again);
    await clock.advance(35);
    expect(seen).toEqual([1_010, 1_020, 1_030]);
    expect(clock.now()).toBe(1_035);
    expect(clock.utcNow().toISOString()).toBe("2026-01-01T00:00:35.000Z");
    clock.jump(100);
    expect(seen).toHaveLength(4);
  });

  it("accumulated steps reach their instant exactly", () => {
    const clock = new ManualClock();
    const end = clock.now() + 0.3;
    for (const seconds of [0.1, 0.1, 0.1]) clock.jump(seconds);
    expect(clock.now()).toBe(end);
  });

  it("a move to the next timer fires it, even between two microseconds", async () => {
    const clock = new ManualClock();
    const wake = vi.fn();
    clock.at(clock.now() + 1 / 3, wake);
    await clock.advance(clock.nextDue() - clock.now());
    expect(wake).toHaveBeenCalledTimes(1);
  });

  it("a timer that is already due fires asynchronously", async () => {
    const clock = new ManualClock();
    const wake = vi.fn();
    clock.at(clock.now(), wake);
    expect(wake).not.toHaveBeenCalled();
    await clock.settle();
    expect(wake).toHaveBeenCalledTimes(1);
    expect(() => clock.jump(-1)).toThrow(RangeError);
  });

  it("waits for tracked work, and a cancelled waitUntil leaves no timer", async () => {
    const clock = new ManualClock();
    let over = false;
    void clock.track(new Promise((resolve) => setTimeout(resolve, 20))).then(() => {
      over = true;
    });
    await clock.settle();
    expect(over).toBe(true);
    const cut = new AbortController();
    const waited = waitUntil(clock, Number.POSITIVE_INFINITY, cut.signal);
    expect(clock.waiting).toBe(1);
    cut.abort();
    await waited;
    expect(clock.waiting).toBe(0);
    await waitUntil(clock, Number.POSITIVE_INFINITY, cut.signal);
  });
});
