import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { SystemClock } from "../src/index.ts";

const INT32_MAX = 2 ** 31 - 1;

describe("SystemClock", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });

  afterEach(() => {
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  it("case 33 SDK-7: a timer of 30 days does not fire at once and does not overflow", async () => {
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

  it("a timer that a patched clearTimeout does not clear ends without firing", async () => {
    const clock = new SystemClock();
    const wake = vi.fn();
    const cancels = [clock.at(clock.now() + 1, wake), clock.at(Number.POSITIVE_INFINITY, wake)];
    const patched = vi.spyOn(globalThis, "clearTimeout").mockImplementation(() => {});
    for (const cancel of cancels) cancel();
    patched.mockRestore();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(wake).not.toHaveBeenCalled();
    expect(vi.getTimerCount()).toBe(0);
  });

  it("SDK-19: a timer and a pause keep the process alive until they end", () => {
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

  it("SDK-4: the wall clock adds the time during which the monotonic clock was suspended", () => {
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

  it("a pause ends after its time or when the signal aborts", async () => {
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
