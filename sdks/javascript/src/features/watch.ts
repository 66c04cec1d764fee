/**
 * `watch`: iterates over the changes of a lock's holder (SDK-14).
 *
 * The watch opens the lock's event stream and then reads its view, so events and view overlap. The fencing token decides
 * which is newer: an event about an older lease changes nothing, and a lease that has ended does not return. If the
 * stream ends, breaks, falls silent or reports missing events, the watch starts over.
 *
 * Limits: of several changes in quick succession, or during a lost connection, only the last one is reported. If the
 * runtime limits connections, a watch over that limit reads the view every few seconds instead (case 78).
 */

import { whenAborted } from "../abort.ts";

import { type Clock, waitUntil } from "../clock.ts";
import { TransportError, VolcanoError } from "../errors.ts";
import { takeLongRequest } from "../http/long_requests.ts";
import type { ByteStream } from "../http/transport.ts";
import { newUuid } from "../protocol/arguments.ts";
import { Backoff, isRetryable } from "../protocol/backoff.ts";
import { type LeadershipEvent, type LockView, parseLeadershipEvent } from "../protocol/lock_view.ts";
import type { Operations } from "../protocol/operations.ts";
import { type SseEvent, SseParser } from "../protocol/sse.ts";

/** The service sends at least a comment every 15 seconds. */
export const SILENCE_SECONDS_MAX = 45;
const RESET = "reset";
/** A stream that lasted this long resets the back-off. */
const STABLE_SECONDS_MIN = 5;
const HEADER_VALUE = /^[!-~]{1,256}$/;

/** Who holds a lock between two changes. */
export interface Leadership {
  readonly held: boolean;
  /** The holder's label; null if the lock is free or the holder sent none. */
  readonly holder: string | null;
  /** The fencing token of the lease; null if the lock is free. */
  readonly fencingToken: number | null;
  /** When the lock was acquired or became free; null if unknown. */
  readonly since: Date | null;
}

/** Tracks who holds one lock. Each method applies a view or an event if it is newer, and returns the change or null. */
class LeadershipTracker {
  #held: boolean | null = null;
  #fencingToken = 0;

  applyView({ held, holder, fencingToken, acquiredAt }: LockView): Leadership | null {
    return this.#update(held, fencingToken ?? this.#fencingToken, holder, acquiredAt);
  }

  applyEvent({ kind, fencingToken, holder, at }: LeadershipEvent): Leadership | null {
    if (kind === "renewed") return this.#update(true, fencingToken, holder, null);
    return this.#update(kind === "acquired", fencingToken, holder, at);
  }

  #update(held: boolean, fencingToken: number, holder: string | null, since: Date | null): Leadership | null {
    const before = this.#held;
    const older = fencingToken < this.#fencingToken || (held && fencingToken === this.#fencingToken);
    if (before !== null && older) return null;
    this.#held = held;
    this.#fencingToken = fencingToken;
    if (held) return Object.freeze({ held, holder, fencingToken, since });
    return before === false ? null : Object.freeze({ held, holder: null, fencingToken: null, since });
  }
}

/** The iterator of a watch. Leaving the loop, `return()` and the caller's signal end the request at once. */
export class Watch implements AsyncIterableIterator<Leadership> {
  readonly #changes: Changes;
  readonly #cancel = new AbortController();
  readonly #signal: AbortSignal | undefined;
  #removeCallback: (() => void) | undefined;
  #returned = false;

  constructor(context: WatchContext, key: string, signal: AbortSignal | undefined) {
    this.#signal = signal;
    this.#changes = watchChanges(context, key, this.#cancel.signal);
  }

  /** The next change, when it comes. Rejects with the reason of the caller's signal once that has aborted. */
  async next(): Promise<IteratorResult<Leadership, void>> {
    this.#listen();
    try {
      const result = await this.#changes.next();
      if (!this.#returned) return result;
    } catch (error) {
      this.#removeCallback?.();
      if (!this.#returned) throw error;
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<Leadership, void>> {
    this.#returned = true;
    this.#removeCallback?.();
    this.#cancel.abort();
    await this.#changes.return().catch(() => {});
    return { done: true, value: undefined };
  }

  /** Ends the watch like `return`, and rejects with `error`. */
  async throw(error?: unknown): Promise<never> {
    await this.return();
    throw error;
  }

  /** Takes the caller's signal at the first `next`: a watch that is never iterated leaves no listener on it. */
  #listen(): void {
    if (this.#removeCallback !== undefined || this.#returned) return;
    const onAbort = (): void => this.#cancel.abort(this.#signal?.reason);
    if (this.#signal?.aborted) onAbort();
    this.#removeCallback = whenAborted(this.#signal, onAbort);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

type Changes = AsyncGenerator<Leadership, void>;

/** The client's parts that a watch uses. */
export interface WatchContext {
  readonly operations: Operations;
  readonly clock: Clock;
  readonly timeoutSeconds: number;
}

/** Yields the changes until `signal` aborts, then throws its reason. */
async function* watchChanges(context: WatchContext, key: string, signal: AbortSignal): Changes {
  const tracker = new LeadershipTracker();
  const backoff = new Backoff();
  const position = { id: "" };
  for (;;) {
    const startedAt = context.clock.now();
    let retryAfter: number | null = null;
    const giveBack = takeLongRequest();
    try {
      if (giveBack === null) yield* readOnce(context, key, signal, tracker);
      else yield* followStream(context, key, signal, tracker, position);
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof VolcanoError && isRetryable(error))) throw error;
      retryAfter = error.retryAfter;
    } finally {
      giveBack?.();
    }
    if (context.clock.now() - startedAt >= STABLE_SECONDS_MIN) backoff.reset();
    await waitUntil(context.clock, context.clock.now() + backoff.next(retryAfter), signal);
    signal.throwIfAborted();
  }
}

/** Without a stream: reads the view, and yields the change if there is one. */
async function* readOnce(
  { operations, timeoutSeconds }: WatchContext,
  key: string,
  signal: AbortSignal,
  tracker: LeadershipTracker,
): Changes {
  const call = { requestId: newUuid(), signal, timeoutSeconds, attempts: 1 };
  const change = tracker.applyView(await operations.view(key, call));
  if (change !== null) yield change;
}

/** Opens one stream, reads the view once the stream has started, and yields the changes until the stream ends. */
async function* followStream(
  { operations, timeoutSeconds }: WatchContext,
  key: string,
  signal: AbortSignal,
  tracker: LeadershipTracker,
  position: { id: string },
): Changes {
  const requestId = newUuid();
  const call = { requestId, signal, timeoutSeconds, attempts: 1 };
  const read = (): Promise<LockView> => operations.view(key, { ...call, requestId: newUuid() });
  const stream = await operations.openEvents(key, HEADER_VALUE.test(position.id) ? position.id : null, call);
  signal.addEventListener("abort", stream.end);
  try {
    const events = readEvents(stream, requestId);
    // The first event carries the position at which the stream started: it covers every later change.
    let event = await events.next();
    let change = tracker.applyView(await read());
    if (change !== null) yield change;
    for (; !event.done; event = await events.next()) {
      const { kind, data, id } = event.value;
      position.id = id || position.id;
      if (kind === RESET) {
        change = tracker.applyView(await read());
      } else {
        const leadershipEvent = parseLeadershipEvent(kind, data, requestId);
        change = leadershipEvent === null ? null : tracker.applyEvent(leadershipEvent);
      }
      if (change !== null) yield change;
    }
  } finally {
    signal.removeEventListener("abort", stream.end);
    stream.end();
  }
}

async function* readEvents(stream: ByteStream, requestId: string): AsyncGenerator<SseEvent, void> {
  const parser = new SseParser();
  for (;;) {
    const bytes = await stream.next(SILENCE_SECONDS_MAX);
    if (bytes === null) return;
    yield* parseBytes(parser, bytes, requestId);
  }
}

function parseBytes(parser: SseParser, bytes: Uint8Array, requestId: string): SseEvent[] {
  try {
    return parser.parse(bytes);
  } catch (error) {
    throw new TransportError((error as Error).message, { requestId });
  }
}
