/**
 * One `withLock` block: acquire the lock, run the body while the renewer runs, then release the lock.
 *
 * The body never runs without the lock (case 18). The renewer ends before the release is sent, and a late response to a
 * renewal changes nothing (SDK-5). The block resolves with:
 *
 * - the body's error, if it threw; a loss or a failed release is attached to it as `suppressed`;
 * - the `LockOwnershipLostError`, if the lease was lost and the body returned, or threw only the loss or the `AbortError`
 *   that it caused; `data` is what the body returned;
 * - the body's result, if it held the lock throughout, even if the release was not confirmed. The work was protected, and
 *   reporting it as failed would invite a second run. The lock becomes free when its lease expires, and
 *   `guard.releaseError` says why.
 *
 * A block with `holdAtLeast` that ends early does not release. It renews once, with the remaining time as TTL, and lets
 * the lease expire, so that a job of 200 ms does not run again on a host whose clock is slightly late (SDK-12). If that
 * renewal fails, it counts as a failed release.
 */

import { whenAborted } from "../abort.ts";

import { type Clock, waitUntil } from "../clock.ts";
import {
  attachSuppressed,
  ConflictError,
  type ContentionReason,
  contentionReason,
  LOCK_HELD,
  LockHeldError,
  LockOwnershipLostError,
  type VolcanoError,
} from "../errors.ts";
import { WAIT_SLICE_SECONDS } from "../protocol/acquire_wait.ts";
import { newUuid, rejectGenerator, TTL_SECONDS_MIN } from "../protocol/arguments.ts";
import { BACKOFF_SECONDS_MAX } from "../protocol/backoff.ts";
import type { Lease } from "../protocol/lease.ts";
import { ATTEMPTS_MAX, type ConfirmedLease, type Grant, type Operations } from "../protocol/operations.ts";
import { isError, readProperty } from "../unknown_values.ts";
import { LockGuard } from "./guard.ts";
import { Hold } from "./hold.ts";
import type { OpenBlocks } from "./reentrancy.ts";
import { runRenewals } from "./renewer.ts";

export const RELEASE_SECONDS_MAX = 5;
export const RELEASE_LOST_SECONDS_MAX = 1;
/** How long to wait for a renewal in flight, which could arrive after the final renewal and shorten the lease. */
const RENEWAL_DRAIN_SECONDS_MAX = 1;

/** Result of `withLock`. */
export type WithLockResult<T> =
  | { readonly acquired: true; readonly data: T; readonly error: null; readonly reason?: undefined }
  /** After a loss `data` is what the body returned, or null if it threw. */
  | { readonly acquired: true; readonly data: T | null; readonly error: Error; readonly reason?: undefined }
  | { readonly acquired: false; readonly data: null; readonly error: null; readonly reason: ContentionReason }
  | { readonly acquired: false; readonly data: null; readonly error: VolcanoError; readonly reason?: undefined };

/** The client's parts and the options that a block uses. */
export interface BlockContext {
  readonly key: string;
  readonly openBlocks: OpenBlocks;
  readonly operations: Operations;
  readonly clock: Clock;
  readonly timeoutSeconds: number;
  readonly renewEvery: number | undefined;
  readonly signal: AbortSignal | undefined;
  /** How long to hold the lock from its grant on, even if the body ends sooner. */
  readonly holdAtLeastSeconds: number;
  acquire(): Promise<ConfirmedLease>;
  /** The lease that a renewal of `lease` granted. */
  renewedLease(lease: Lease, grant: Grant): Lease;
}

/** How a block ended, for `lead` and `exclusive`, which build on blocks. */
export interface BlockOutcome<T> {
  readonly result: WithLockResult<T>;
  /** Whether the block was entered and its error is the loss of its own lease. */
  readonly lost: boolean;
  /** The contention that prevented entry, if any. */
  readonly contention: ConflictError | null;
  /** What the throwing forms reject with, which may be any value that the body threw; null if they resolve. */
  readonly rejection: { readonly reason: unknown } | null;
}

/** The function that runs under the lock. */
export type BlockBody<T> = (guard: LockGuard) => T | PromiseLike<T>;

type BodyOutcome<T> = { readonly data: T } | { readonly thrown: unknown };

/** Runs one block. Never rejects. */
export async function runBlock<T>(context: BlockContext, body: BlockBody<T>): Promise<BlockOutcome<T>> {
  const notEntered = { acquired: false, data: null } as const;
  if (context.openBlocks.contains(context.key)) {
    const error = nestedBlock(context.key);
    return { result: { ...notEntered, error }, lost: false, contention: error, rejection: { reason: error } };
  }
  let hold: Hold;
  const startedAt = context.clock.now();
  try {
    const confirmed = await context.acquire();
    // No `await` from here to the renewer: a granted lease is always renewed or released.
    const acquiredAt = Math.max(startedAt, earliestGrantTime(confirmed, context.timeoutSeconds));
    const { clock, timeoutSeconds, renewEvery, operations } = context;
    const start = { clock, log: operations.log, timeoutSeconds, renewEvery, acquiredAt, jitter: Math.random() };
    hold = new Hold({ ...confirmed, ...start });
  } catch (error) {
    const rejection = { reason: error };
    if (!(error instanceof ConflictError)) {
      return { result: { ...notEntered, error: error as VolcanoError }, lost: false, contention: null, rejection };
    }
    const result = { ...notEntered, error: null, reason: contentionReason(error) };
    return { result, lost: false, contention: error, rejection };
  }
  const bodyRuns = context.signal?.aborted !== true;
  const keepUntil = bodyRuns ? context.clock.now() + context.holdAtLeastSeconds : Number.NEGATIVE_INFINITY;
  const renewals = runRenewals(hold, context.clock, async (lease, timeoutSeconds, signal) => {
    const call = { requestId: newUuid(), timeoutSeconds, signal, attempts: 1 };
    const grant = await context.operations.renew(lease, lease.ttlSeconds, call);
    return { lease: context.renewedLease(lease, grant), grant };
  });
  let releaseError: VolcanoError | null = null;
  const outcome = await runBody(context, body, new LockGuard(hold, () => releaseError), hold);
  hold.leave();
  if (context.clock.now() < keepUntil) await waitAtMost(RENEWAL_DRAIN_SECONDS_MAX, renewals, context.clock);
  hold.cancelRenewal();
  await renewals;
  const release = await releaseOrKeep(context, hold, keepUntil);
  releaseError = release.releaseError;
  const result = blockResult(outcome, release.loss, releaseError);
  const lost = release.loss !== null && result.error === release.loss;
  const thrown = "thrown" in outcome && !lost ? outcome.thrown : result.error;
  return { result, lost, contention: null, rejection: result.error === null ? null : { reason: thrown } };
}

/** The error of a block inside a block of the same lock, which would wait for itself. */
function nestedBlock(key: string): LockHeldError {
  const message = `the lock ${key} is held by an outer block of this async context: blocks are not re-entrant`;
  return new LockHeldError(message, { code: LOCK_HELD, key });
}

/** An instant before the grant. Retries, a wait and its confirmation may lie between it and the response. */
function earliestGrantTime({ lease, grant }: ConfirmedLease, timeoutSeconds: number): number {
  const repeated = ATTEMPTS_MAX * (timeoutSeconds + BACKOFF_SECONDS_MAX);
  return grant.deadline - lease.ttlSeconds - WAIT_SLICE_SECONDS - repeated;
}

async function runBody<T>(
  { clock, signal, key, openBlocks }: BlockContext,
  body: BlockBody<T>,
  guard: LockGuard,
  hold: Hold,
): Promise<BodyOutcome<T>> {
  if (signal?.aborted) return { thrown: signal.reason };
  const removeCallback = whenAborted(signal, () => hold.abortBody(signal?.reason));
  // Keep the process alive until the body has ended, even after a loss has cancelled the other timers (SDK-19).
  const cancelKeepAlive = clock.at(Number.POSITIVE_INFINITY, () => {});
  try {
    return { data: rejectGenerator(await openBlocks.run(key, () => body(guard))) };
  } catch (thrown) {
    return { thrown };
  } finally {
    cancelKeepAlive();
    removeCallback();
  }
}

/** Waits for `work`, but at most `seconds`. */
async function waitAtMost(seconds: number, work: Promise<void>, clock: Clock): Promise<void> {
  const ended = new AbortController();
  await Promise.race([work, waitUntil(clock, clock.now() + seconds, ended.signal)]);
  ended.abort();
}

/**
 * Releases the lock, or renews it a last time to hold it until `keepUntil`. Bounded in time. Sends nothing if the service
 * itself reported the loss.
 */
async function releaseOrKeep(
  context: BlockContext,
  hold: Hold,
  keepUntil: number,
): Promise<{ loss: LockOwnershipLostError | null; releaseError: VolcanoError | null }> {
  const loss = hold.loss();
  if (loss !== null && loss.status !== null) return { loss, releaseError: null };
  const now = context.clock.now();
  const lostUntil = now + RELEASE_LOST_SECONDS_MAX;
  const ownedUntil = Math.max(Math.min(now + RELEASE_SECONDS_MAX, hold.deadline), lostUntil);
  const call = {
    requestId: newUuid(),
    timeoutSeconds: context.timeoutSeconds,
    until: loss === null ? ownedUntil : lostUntil,
  };
  try {
    const keep = loss === null && now < keepUntil;
    if (keep) await context.operations.renew(hold.lease, remainingTtl(keepUntil - now), call);
    else await context.operations.release(hold.lease, call);
  } catch (error) {
    if (error instanceof LockOwnershipLostError) return { loss: loss ?? error, releaseError: null };
    return { loss, releaseError: error as VolcanoError };
  }
  return { loss, releaseError: null };
}

/** The shortest TTL that covers `seconds`. Rounding to microseconds absorbs floating-point error. */
function remainingTtl(seconds: number): number {
  return Math.max(TTL_SECONDS_MIN, Math.ceil(Math.round(seconds * 1e6) / 1e6));
}

function blockResult<T>(
  outcome: BodyOutcome<T>,
  loss: LockOwnershipLostError | null,
  releaseError: VolcanoError | null,
): WithLockResult<T> {
  if (!("thrown" in outcome)) return { acquired: true, data: outcome.data, error: loss };
  const failed = { acquired: true, data: null } as const;
  if (loss !== null && wasStoppedBy(loss, outcome.thrown)) return { ...failed, error: loss };
  const error = asError(outcome.thrown);
  attachSuppressed(error, loss, releaseError);
  return { ...failed, error };
}

/** Whether the body threw only the loss that its signal reported. The `AbortError` may be one of another realm. */
function wasStoppedBy(loss: LockOwnershipLostError, thrown: unknown): boolean {
  if (thrown === loss) return true;
  return isError(thrown) && readProperty(thrown, "name") === "AbortError" && readProperty(thrown, "cause") === loss;
}

/** Wraps a thrown value that is not an error, so that `if (result.error)` detects it. */
function asError(thrown: unknown): Error {
  if (isError(thrown)) return thrown;
  return new Error("the body threw a value that is not an error", { cause: thrown });
}
