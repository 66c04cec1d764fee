/**
 * Functions that run under a lock, each call in a block of its own (SDK-16).
 *
 * The function that is made behaves as the one it was made of, but for the wait: it resolves with its result and rejects
 * with its error, or with the loss of the lock. JavaScript does not know the names of arguments, so a key that depends
 * on them is a function of them.
 */

import type { BlockEnd } from "../holding/block.ts";
import type { LockGuard } from "../holding/guard.ts";
import {
  checkedChoice,
  checkedFunction,
  checkedHoldAtLeast,
  checkedKey,
  checkedTtl,
  optionsOf,
} from "../protocol/messages.ts";
import type { WithLockOptions } from "../protocol/options.ts";

const ON_HELD = ["raise", "skip", "wait"] as const;

export interface ExclusiveOptions {
  /** Whole seconds from now that a lease lasts, 5 to 7,776,000; it is renewed while the function runs. */
  ttl: number;
  /**
   * What a call does while somebody else holds the lock: `raise` (if left out) rejects with the `LockHeldError`, `skip`
   * resolves with `undefined`, `wait` waits for ever.
   */
  onHeld?: "raise" | "skip" | "wait" | undefined;
  /** As in `withLock`. */
  holdAtLeast?: number | undefined;
  /** Whether the function gets the block's guard, behind its own arguments. */
  passGuard?: boolean | undefined;
}

/** What a call resolves with: also nothing, if it may be skipped. */
export type ExclusiveResult<O extends ExclusiveOptions, R> = O extends {
  ttl: number;
  onHeld?: "raise" | "wait" | undefined;
}
  ? Awaited<R>
  : Awaited<R> | undefined;

type Block = <T>(
  key: string,
  options: WithLockOptions,
  body: (guard: LockGuard) => T | PromiseLike<T>,
) => Promise<BlockEnd<T>>;

/** The verb; with `passGuard` the function has one argument more than its calls. */
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

type Called = (this: unknown, ...args: unknown[]) => unknown;

/** The verb over `block`. */
export function exclusiveIn(block: Block): Exclusive {
  return ((key: string | Called, options: ExclusiveOptions, run: Called) =>
    made(block, key, options, run)) as Exclusive;
}

function made(block: Block, key: string | Called, options: ExclusiveOptions, run: Called): Called {
  const name = typeof key === "function" ? null : checkedKey(key);
  const keyOf = typeof key === "function" ? key : () => name;
  const ttl = checkedTtl(optionsOf(options).ttl);
  const onHeld = options.onHeld === undefined ? "raise" : checkedChoice("onHeld", options.onHeld, ON_HELD);
  const holdAtLeast = checkedHoldAtLeast(options.holdAtLeast);
  const { passGuard = false } = options;
  checkedFunction("run", run);
  const call = async function (this: unknown, ...args: unknown[]): Promise<unknown> {
    const wait = onHeld === "wait" ? Number.POSITIVE_INFINITY : 0;
    const { result, contention } = await block(keyOf.apply(this, args) as string, { ttl, wait, holdAtLeast }, (guard) =>
      run.apply(this, passGuard ? [...args, guard] : args),
    );
    if (contention !== null && onHeld === "skip") return undefined;
    const error = contention ?? result.error;
    if (error !== null) throw error;
    return result.data;
  };
  return Object.defineProperty(call, "name", { value: run.name, configurable: true });
}
