/**
 * One `withLock` block: acquire and start renewing; stop renewing, then release.
 *
 * The body never runs without the lock (case 18). On leaving, by whatever way, the renewals have ended before the
 * release goes out, and an answer that is still under way can re-arm nothing (SDK-5). What the block resolves with:
 *
 * - the body threw: its error; a loss or a failed release is attached to it as `suppressed`;
 * - the body threw nothing but the loss (or the `AbortError` it caused), or it succeeded and the lease had been lost
 *   at some time: the `LockOwnershipLostError`, beside what the body returned;
 * - it succeeded and owned the lock throughout, but the release was not confirmed: its result. The work was
 *   protected, and to report it as failed would invite doing it twice; the lock frees itself at its expiry, and
 *   `guard.releaseError` says why.
 *
 * A block that is to hold the lock for longer than its body took does not release: it renews once, to the rest of that
 * time, and leaves the lease to expire, so that a job of 200 ms does not run again on a host whose clock fires a little
 * later (SDK-12). A renewal that fails then counts like a failed release.
 */

import { type Clock, restUntil } from "../clock.ts";
import {
  attach,
  ConflictError,
  type ContentionReason,
  contentionReason,
  LockOwnershipLostError,
  type VolcanoError,
} from "../errors.ts";
import { WAIT_SLICE_SECONDS } from "../protocol/acquire_wait.ts";
import { REST_SECONDS_MAX } from "../protocol/backoff.ts";
import type { Lease } from "../protocol/lease.ts";
import { newUuid, TTL_SECONDS_MIN } from "../protocol/messages.ts";
import { ATTEMPTS_MAX, type Flows, type Granted } from "../protocol/operations.ts";
import { Hold, keep, LockGuard, type Renewed } from "./guard.ts";

export const RELEASE_SECONDS_MAX = 5;
export const RELEASE_LOST_SECONDS_MAX = 1;
/** A renewal under way could land after the one to the rest, and cut it short. */
const RENEWAL_END_SECONDS_MAX = 1;

/** What `withLock` resolves with. */
export type WithLockResult<T> =
  | { readonly acquired: true; readonly data: T; readonly error: null; readonly reason?: undefined }
  /** `data` is what the body returned, if it returned in spite of a loss. */
  | { readonly acquired: true; readonly data: T | null; readonly error: Error; readonly reason?: undefined }
  | { readonly acquired: false; readonly data: null; readonly error: null; readonly reason: ContentionReason }
  | { readonly acquired: false; readonly data: null; readonly error: VolcanoError; readonly reason?: undefined };

/** What a block works with. */
export interface Means {
  readonly flows: Flows;
  readonly clock: Clock;
  readonly timeoutSeconds: number;
  readonly signal: AbortSignal | undefined;
  /** How long the lock is kept from its grant on, however soon the body ends. */
  readonly holdAtLeastSeconds: number;
  acquire(): Promise<Renewed>;
  /** The lease that `granted` prolongs `lease` to. */
  prolonged(lease: Lease, granted: Granted): Lease;
}

/** How a block ended, for what is built of blocks. */
export interface BlockEnd<T> {
  readonly result: WithLockResult<T>;
  /** Whether the block was entered and what its result tells is the loss of its own lease. */
  readonly lost: boolean;
  /** Why it was not entered, if that was contention. */
  readonly contention: ConflictError | null;
}

type Outcome<T> = { readonly data: T } | { readonly thrown: unknown };

/** Never rejects. */
export async function runBlock<T>(means: Means, body: (guard: LockGuard) => T | PromiseLike<T>): Promise<BlockEnd<T>> {
  let hold: Hold;
  const beganAt = means.clock.now();
  try {
    const { lease, granted } = await means.acquire();
    // From here to the body nothing awaits: there is no moment in which a lease has no keeper.
    const acquiredAt = Math.max(beganAt, grantedAfter(lease, granted, means.timeoutSeconds));
    hold = new Hold(lease, granted.deadline, means.clock, means.timeoutSeconds, Math.random(), acquiredAt);
  } catch (error) {
    const outside = { acquired: false, data: null } as const;
    if (!(error instanceof ConflictError)) {
      return { result: { ...outside, error: error as VolcanoError }, lost: false, contention: null };
    }
    const result = { ...outside, error: null, reason: contentionReason(error) };
    return { result, lost: false, contention: error };
  }
  const begins = means.signal?.aborted !== true;
  const heldUntil = begins ? means.clock.now() + means.holdAtLeastSeconds : Number.NEGATIVE_INFINITY;
  const kept = keep(hold, means.clock, (lease, seconds, signal) => renewOnce(means, lease, seconds, signal));
  let releaseError: VolcanoError | null = null;
  const outcome = await inBody(means, body, new LockGuard(hold, () => releaseError), hold);
  hold.leave();
  if (means.clock.now() < heldUntil) await within(RENEWAL_END_SECONDS_MAX, kept, means.clock);
  hold.cut();
  await kept;
  const left = await leave(means, hold, heldUntil);
  releaseError = left.releaseError;
  const result = resultOf(outcome, left.loss, releaseError);
  return { result, lost: left.loss !== null && result.error === left.loss, contention: null };
}

/** An instant before the grant: a wait's lease may be known by a later request, or by its confirmation. */
function grantedAfter(lease: Lease, granted: Granted, timeoutSeconds: number): number {
  const repeated = ATTEMPTS_MAX * (timeoutSeconds + REST_SECONDS_MAX);
  return granted.deadline - lease.ttlSeconds - WAIT_SLICE_SECONDS - repeated;
}

async function inBody<T>(
  { clock, signal }: Means,
  body: (guard: LockGuard) => T | PromiseLike<T>,
  guard: LockGuard,
  hold: Hold,
): Promise<Outcome<T>> {
  if (signal?.aborted) return { thrown: signal.reason };
  const onAbort = (): void => hold.stop(signal?.reason);
  signal?.addEventListener("abort", onAbort);
  // The process lives until the body has ended, even if the lease was lost and its timers are gone (SDK-19).
  const cancelKeepAlive = clock.at(Number.POSITIVE_INFINITY, () => {});
  try {
    return { data: await body(guard) };
  } catch (thrown) {
    return { thrown };
  } finally {
    cancelKeepAlive();
    signal?.removeEventListener("abort", onAbort);
  }
}

/** Until `work` has ended, or `seconds` have passed. */
async function within(seconds: number, work: Promise<void>, clock: Clock): Promise<void> {
  const ended = new AbortController();
  await Promise.race([work, restUntil(clock, clock.now() + seconds, ended.signal)]);
  ended.abort();
}

async function renewOnce(means: Means, lease: Lease, timeoutSeconds: number, signal: AbortSignal): Promise<Renewed> {
  const pace = { requestId: newUuid(), timeoutSeconds, signal, attempts: 1 };
  const granted = await means.flows.renew(lease, lease.ttlSeconds, pace);
  return { lease: means.prolonged(lease, granted), granted };
}

/**
 * The release at the end: bounded in time, of a lost lease also quiet, and none if the service told of the loss. Where
 * the lock is to be held until `heldUntil`, the last renewal in its place.
 */
async function leave(
  means: Means,
  hold: Hold,
  heldUntil: number,
): Promise<{ loss: LockOwnershipLostError | null; releaseError: VolcanoError | null }> {
  const loss = hold.loss();
  if (loss !== null && loss.status !== null) return { loss, releaseError: null };
  const now = means.clock.now();
  const lostUntil = now + RELEASE_LOST_SECONDS_MAX;
  const ownedUntil = Math.max(Math.min(now + RELEASE_SECONDS_MAX, hold.deadline), lostUntil);
  const pace = {
    requestId: newUuid(),
    timeoutSeconds: means.timeoutSeconds,
    until: loss === null ? ownedUntil : lostUntil,
  };
  try {
    if (loss === null && now < heldUntil) await means.flows.renew(hold.lease, restSeconds(heldUntil - now), pace);
    else await means.flows.release(hold.lease, pace);
  } catch (error) {
    if (error instanceof LockOwnershipLostError) return { loss: loss ?? error, releaseError: null };
    return { loss, releaseError: error as VolcanoError };
  }
  return { loss, releaseError: null };
}

/** The shortest lease that lasts so long; what a sum of fractions added below a microsecond is no second more. */
function restSeconds(seconds: number): number {
  return Math.max(TTL_SECONDS_MIN, Math.ceil(Math.round(seconds * 1e6) / 1e6));
}

function resultOf<T>(
  outcome: Outcome<T>,
  loss: LockOwnershipLostError | null,
  releaseError: VolcanoError | null,
): WithLockResult<T> {
  if (!("thrown" in outcome)) return { acquired: true, data: outcome.data, error: loss };
  const failed = { acquired: true, data: null } as const;
  if (loss !== null && isEffectOf(loss, outcome.thrown)) return { ...failed, error: loss };
  const error = asError(outcome.thrown);
  attach(error, loss, releaseError);
  return { ...failed, error };
}

/** Whether the body ended with nothing but what its signal told it. */
function isEffectOf(loss: LockOwnershipLostError, thrown: unknown): boolean {
  if (thrown === loss) return true;
  return thrown instanceof Error && thrown.name === "AbortError" && thrown.cause === loss;
}

/** What was thrown, if it is an error; else one that has it as its cause, so that `if (result.error)` sees it. */
function asError(thrown: unknown): Error {
  if (thrown instanceof Error || Object.prototype.toString.call(thrown) === "[object Error]") return thrown as Error;
  return new Error("the body threw something that is no error", { cause: thrown });
}
