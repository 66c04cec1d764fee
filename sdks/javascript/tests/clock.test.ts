import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { waitUntil } from "../src/clock.ts";
import { SystemClock } from "../src/index.ts";
import { ManualClock } from "../src/testing/index.ts";

const INT32_MAX = 2 ** 31 - 1;

describe("the real clock", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  it("case 33 SDK-7: a wait of 30 days neither fires at once nor asks for a timer that overflows", async () => {
    const set = vi.spyOn(globalThis, "setTimeout");
    const clock = new SystemClock();
    const wake = vi.fn();
    const cancel = clock.at(clock.now() + 7_776_000 / 3, wake);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(wake).not.toHaveBeenCalled();
    expect(set.mock.calls.every(([, ms]) => (ms ?? 0) <= INT32_MAX)).toBe(true);
    vi.setSystemTime(Date.now() + 30 * 86_400_000);
    await vi.advanceTimersByTimeAsync(2_000);
    expect(wake).toHaveBeenCalledTimes(1);
    cancel();
    expect(vi.getTimerCount()).toBe(0);
  });

  it("SDK-19: a wait and a pause keep the process alive, until they are over", () => {
    vi.useRealTimers();
    const timers: Array<{ hasRef(): boolean }> = [];
    const real = setTimeout;
    vi.spyOn(globalThis, "setTimeout").mockImplementation(((...args: Parameters<typeof setTimeout>) => {
      const timer = real(...args);
      timers.push(timer);
      return timer;
    }) as typeof setTimeout);
    const clock = new SystemClock();
    const cancel = clock.at(clock.now() + 60, () => {});
    const cancelled = new AbortController();
    const paused = clock.pause(60, cancelled.signal);
    expect(timers.map((timer) => timer.hasRef())).toEqual([true, true]);
    const active = (): number => process.getActiveResourcesInfo().filter((one) => one === "Timeout").length;
    const before = active();
    cancel();
    cancelled.abort();
    expect(before - active()).toBe(2);
    return paused;
  });

  it("SDK-4: time that the monotonic clock slept through is counted by the wall clock", () => {
    const monotonic = vi.spyOn(performance, "now").mockReturnValue(5_000);
    const wall = vi.spyOn(Date, "now").mockReturnValue(1_000_000);
    const clock = new SystemClock();
    const start = clock.now();
    const passed = (monotonicMs: number, wallMs: number): number => {
      monotonic.mockReturnValue(monotonicMs);
      wall.mockReturnValue(wallMs);
      return clock.now() - start;
    };
    expect(passed(6_000, 1_001_000)).toBeCloseTo(1);
    expect(passed(7_000, 1_062_000)).toBeCloseTo(62);
    expect(passed(8_000, 500_000)).toBeCloseTo(63);
    expect(passed(9_000, 501_050)).toBeCloseTo(64);
    expect(passed(9_000, 501_050)).toBeCloseTo(64);
  });

  it("pauses for as long as asked, or until the signal", async () => {
    const clock = new SystemClock();
    const done = vi.fn();
    void clock.pause(5).then(done);
    await vi.advanceTimersByTimeAsync(4_900);
    expect(done).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(200);
    expect(done).toHaveBeenCalled();
    const caller = new AbortController();
    const paused = clock.pause(1e9, caller.signal);
    caller.abort();
    await paused;
    await clock.pause(1e9, AbortSignal.abort());
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe("the moved clock", () => {
  it("stops at each instant somebody waits for", async () => {
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

  it("meets the instants that its steps add up to", () => {
    const clock = new ManualClock();
    const end = clock.now() + 0.3;
    for (const seconds of [0.1, 0.1, 0.1]) clock.jump(seconds);
    expect(clock.now()).toBe(end);
  });

  it("meets an instant between two microseconds when it is moved up to it", async () => {
    const clock = new ManualClock();
    const wake = vi.fn();
    clock.at(clock.now() + 1 / 3, wake);
    await clock.advance(clock.nextDue() - clock.now());
    expect(wake).toHaveBeenCalledTimes(1);
  });

  it("wakes a wait that is already due, but later than the call", async () => {
    const clock = new ManualClock();
    const wake = vi.fn();
    clock.at(clock.now(), wake);
    expect(wake).not.toHaveBeenCalled();
    await clock.settle();
    expect(wake).toHaveBeenCalledTimes(1);
    expect(() => clock.jump(-1)).toThrow(RangeError);
  });

  it("waits for tracked work, and leaves nothing behind when a rest is cut short", async () => {
    const clock = new ManualClock();
    let over = false;
    void clock.track(new Promise((resolve) => setTimeout(resolve, 20))).then(() => {
      over = true;
    });
    await clock.settle();
    expect(over).toBe(true);
    const cut = new AbortController();
    const rest = waitUntil(clock, Number.POSITIVE_INFINITY, cut.signal);
    expect(clock.waiting).toBe(1);
    cut.abort();
    await rest;
    expect(clock.waiting).toBe(0);
    await waitUntil(clock, Number.POSITIVE_INFINITY, cut.signal);
  });
});
