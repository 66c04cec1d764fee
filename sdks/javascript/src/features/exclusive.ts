/**
 * `exclusive`: wraps a function so that each call holds a lock (SDK-16).
 *
 * The wrapper resolves with the function's result, and rejects with its error or with the loss of the lock. JavaScript
 * cannot look up arguments by name, so a key that depends on them is a function of them.
 */

import type { BlockBody, BlockOutcome } from "../holding/block.ts";
import type { LockGuard } from "../holding/guard.ts";
import type { WithLockOptions } from "../options.ts";
import {
  checkedChoice,
  checkedFunction,
  checkedHoldAtLeast,
  checkedKey,
  checkedOptions,
  checkedTtl,
} from "../protocol/arguments.ts";

const ON_HELD_CHOICES = ["raise", "skip", "wait"] as const;

export interface ExclusiveOptions {
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

/** What a call resolves with; includes `undefined` if the call may be skipped. */
export type ExclusiveResult<O extends ExclusiveOptions, R> = O extends {
  ttl: number;
  onHeld?: "raise" | "wait" | undefined;
}
  ? Awaited<R>
  : Awaited<R> | undefined;

type RunBlock = <T>(key: string, options: WithLockOptions, body: BlockBody<T>) => Promise<BlockOutcome<T>>;

/** Type of the verb; with `passGuard` the function takes one more argument than the wrapper. */
export interface Exclusive {
  <This, Args extends unknown[], R, O extends ExclusiveOptions & { passGuard: true }>(
    key: string | ((this: This, ...args: Args) => string),
    options: O,
    run: (this: This, ...args: [...Args, guard: LockGuard]) => R,
  ): (this: This, ...args: Args) => Promise<ExclusiveResult<O, R>>;
  <This, Args extends unknown[], R, O extends ExclusiveOptions & { passGuard?: false | undefined }>(
    key: string | ((this: This, ...args: Args) => string),
    options: O,
    run: (this: This, ...args: Args) => R,
  ): (this: This, ...args: Args) => Promise<ExclusiveResult<O, R>>;
}

type AnyFunction = (this: unknown, ...args: unknown[]) => unknown;

/** Creates the verb on top of `runBlock`. */
export function createExclusive(runBlock: RunBlock): Exclusive {
  return wrap.bind(null, runBlock) as Exclusive;
}

function wrap(runBlock: RunBlock, key: string | AnyFunction, options: ExclusiveOptions, run: AnyFunction): AnyFunction {
  const name = typeof key === "function" ? null : checkedKey(key);
  const keyOf = typeof key === "function" ? key : () => name;
  const ttl = checkedTtl(checkedOptions(options).ttl);
  const onHeld = options.onHeld === undefined ? "raise" : checkedChoice("onHeld", options.onHeld, ON_HELD_CHOICES);
  const holdAtLeast = checkedHoldAtLeast(options.holdAtLeast);
  const { passGuard = false } = options;
  checkedFunction("run", run);
  const call = async function (this: unknown, ...args: unknown[]): Promise<unknown> {
    const wait = onHeld === "wait" ? Number.POSITIVE_INFINITY : 0;
    const calledKey = keyOf.apply(this, args) as string;
    const body: BlockBody<unknown> = (guard) => run.apply(this, passGuard ? [...args, guard] : args);
    const { result, contention } = await runBlock(calledKey, { ttl, wait, holdAtLeast }, body);
    if (contention !== null && onHeld === "skip") return undefined;
    const error = contention ?? result.error;
    if (error !== null) throw error;
    return result.data;
  };
  return Object.defineProperty(call, "name", { value: run.name, configurable: true });
}
