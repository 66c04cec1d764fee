/**
 * `exclusive`: wraps a function so that each call holds a lock (SDK-16).
 *
 * The wrapper resolves with the function's result, and rejects with what it threw, whatever that is (case 77), or with the
 * loss of the lock. JavaScript cannot look up arguments by name, so a key that depends on arguments is a function.
 */

import type { BlockBody, BlockOutcome } from "../holding/block.ts";
import type { LockGuard } from "../holding/guard.ts";
import type { RenewalOptions, WithLockOptions } from "../options.ts";
import {
  checkedBody,
  checkedChoice,
  checkedHoldAtLeast,
  checkedKey,
  checkedOptions,
  checkedRenewEvery,
  checkedTtl,
  type OptionNames,
} from "../protocol/arguments.ts";

const ON_HELD_CHOICES = ["raise", "skip", "wait"] as const;

export interface ExclusiveOptions extends RenewalOptions {
  /** Duration of a lease in whole seconds, 5 to 7,776,000; the client renews it while the function runs. */
  ttl: number;
  /**
   * What a call does while another caller holds the lock: `raise` (the default) rejects with the `LockHeldError`, `skip`
   * resolves with `undefined`, `wait` waits without limit.
   */
  onHeld?: "raise" | "skip" | "wait" | undefined;
  /** As in `withLock`. */
  holdAtLeast?: number | undefined;
  /** Whether to pass the block's guard to the function, after its own arguments. */
  passGuard?: boolean | undefined;
}

const OPTION_NAMES: OptionNames<ExclusiveOptions> = {
  ttl: true,
  onHeld: true,
  holdAtLeast: true,
  renewEvery: true,
  passGuard: true,
};

/** What a call resolves with; includes `undefined` if the call may be skipped. */
export type ExclusiveResult<O extends ExclusiveOptions, R> = O extends {
  ttl: number;
  onHeld?: "raise" | "wait" | undefined;
}
  ? Awaited<R>
  : Awaited<R> | undefined;

type RunBlock = <T>(key: string, options: WithLockOptions, body: BlockBody<T>) => Promise<BlockOutcome<T>>;

/**
 * Type of the verb. With `passGuard` the function takes one argument more than the wrapper. The first form infers the
 * type of a guard that has no annotation; the second infers the types of the other arguments.
 */
export interface Exclusive {
  <This, R, O extends Guarded, Args extends unknown[] = LockGuard[]>(
    key: string | ((this: This, ...args: Args) => string),
    options: O,
    run: (this: This, ...args: [...Args, guard: LockGuard]) => R,
  ): (this: This, ...args: Args) => Promise<ExclusiveResult<O, R>>;
  <This, R, O extends Guarded, Args extends unknown[]>(
    key: string | ((this: This, ...args: Args) => string),
    options: O,
    run: (this: This, ...args: [...Args, guard: LockGuard]) => R,
  ): (this: This, ...args: Args) => Promise<ExclusiveResult<O, R>>;
  <This, R, O extends ExclusiveOptions, Args extends unknown[]>(
    key: string | ((this: This, ...args: Args) => string),
    options: O,
    run: (this: This, ...args: Args) => R,
  ): (this: This, ...args: Args) => Promise<ExclusiveResult<O, R>>;
}

type Guarded = ExclusiveOptions & { passGuard: true };
type AnyFunction = (this: unknown, ...args: unknown[]) => unknown;

/** Creates the verb on top of `runBlock`. */
export function createExclusive(runBlock: RunBlock): Exclusive {
  return wrap.bind(null, runBlock) as Exclusive;
}

function wrap(runBlock: RunBlock, key: string | AnyFunction, options: ExclusiveOptions, run: AnyFunction): AnyFunction {
  const name = typeof key === "function" ? null : checkedKey(key);
  const keyOf = typeof key === "function" ? key : () => name;
  const ttl = checkedTtl(checkedOptions(options, OPTION_NAMES, "exclusive").ttl);
  const renewEvery = checkedRenewEvery(options.renewEvery, ttl);
  const onHeld = options.onHeld === undefined ? "raise" : checkedChoice("onHeld", options.onHeld, ON_HELD_CHOICES);
  const holdAtLeast = checkedHoldAtLeast(options.holdAtLeast);
  const { passGuard = false } = options;
  checkedBody("run", run);
  const call = async function (this: unknown, ...args: unknown[]): Promise<unknown> {
    const wait = onHeld === "wait" ? Number.POSITIVE_INFINITY : 0;
    const calledKey = keyOf.apply(this, args) as string;
    const body: BlockBody<unknown> = (guard) => run.apply(this, passGuard ? [...args, guard] : args);
    const blockOptions = { ttl, wait, holdAtLeast, renewEvery };
    const { result, contention, rejection } = await runBlock(calledKey, blockOptions, body);
    if (contention !== null && onHeld === "skip") return undefined;
    if (rejection !== null) throw rejection.reason;
    return result.data;
  };
  return Object.defineProperty(call, "name", { value: run.name, configurable: true });
}
