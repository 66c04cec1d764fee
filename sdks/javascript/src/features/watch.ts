/**
 * The changes of who holds a lock, for as long as somebody wants to know (SDK-14).
 *
 * The lock is read when its stream of events has begun, and what the stream tells then overlaps with what was read. The
 * fencing token says what is newer: an event about an older lease changes nothing, and a lease that has ended does not
 * come back. Whenever the stream ends, breaks, is silent or says that something is missing, all of this begins again.
 *
 * Not promised: every change. Of some that follow each other quickly, or while the connection was gone, only the last
 * may be told.
 */

import { type Clock, restUntil } from "../clock.ts";
import { TransportError, VolcanoError } from "../errors.ts";
import type { Chunks } from "../http/transport.ts";
import { Rests, worthARest } from "../protocol/backoff.ts";
import { type LockView, type Told, toldBy } from "../protocol/lock_view.ts";
import { newUuid } from "../protocol/messages.ts";
import type { Flows } from "../protocol/operations.ts";
import { EventReader, type StreamEvent } from "../protocol/sse.ts";

/** The service says something every 15 seconds. */
export const SILENCE_SECONDS_MAX = 45;
const RESET = "reset";
/** A stream that lasted so long went well. */
const LASTED_SECONDS = 5;
const HEADER_VALUE = /^[!-~]{1,256}$/;

/** Who holds a lock, from one change to the next. */
export interface Leadership {
  readonly held: boolean;
  /** The label of who holds it; null of a free lock, or if they told none. */
  readonly holder: string | null;
  /** Of this lease; null of a free lock. */
  readonly fencingToken: number | null;
  /** When it was acquired, or when the lock became free; null where that is not known. */
  readonly since: Date | null;
}

/** What is known of one lock, from readings and events, of which only what is newer is taken. */
class Known {
  #held: boolean | null = null;
  #fencingToken = 0;

  /** A reading: what it tells anew, else null. */
  view({ held, holder, fencingToken, acquiredAt }: LockView): Leadership | null {
    return this.#take(held, fencingToken ?? this.#fencingToken, holder, acquiredAt);
  }

  /** An event: what it tells anew, else null. */
  event({ kind, fencingToken, holder, at }: Told): Leadership | null {
    if (kind === "renewed") return this.#take(true, fencingToken, holder, null);
    return this.#take(kind === "acquired", fencingToken, holder, at);
  }

  #take(held: boolean, fencingToken: number, holder: string | null, since: Date | null): Leadership | null {
    const before = this.#held;
    const older = fencingToken < this.#fencingToken || (held && fencingToken === this.#fencingToken);
    if (before !== null && older) return null;
    this.#held = held;
    this.#fencingToken = fencingToken;
    if (held) return Object.freeze({ held, holder, fencingToken, since });
    return before === false ? null : Object.freeze({ held, holder: null, fencingToken: null, since });
  }
}

/** A loop over the changes. Leaving it, `return()` and the caller's signal end the request at once. */
export class Watch implements AsyncIterableIterator<Leadership> {
  readonly #changes: AsyncGenerator<Leadership, void>;
  readonly #end = new AbortController();
  readonly #signal: AbortSignal | undefined;
  readonly #onAbort = (): void => this.#end.abort(this.#signal?.reason);
  #left = false;

  constructor(means: Watching, key: string, signal: AbortSignal | undefined) {
    this.#signal = signal;
    this.#changes = changes(means, key, this.#end.signal);
    if (signal?.aborted) this.#onAbort();
    else signal?.addEventListener("abort", this.#onAbort);
  }

  /** The next change, when it comes. Rejects with the reason of the caller's signal once that has aborted. */
  async next(): Promise<IteratorResult<Leadership, void>> {
    try {
      const result = await this.#changes.next();
      if (!this.#left) return result;
    } catch (error) {
      this.#forget();
      if (!this.#left) throw error;
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<Leadership, void>> {
    this.#left = true;
    this.#forget();
    this.#end.abort();
    await this.#changes.return().catch(() => {});
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #forget(): void {
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }
}

/** What a watch works with. */
export interface Watching {
  readonly flows: Flows;
  readonly clock: Clock;
  readonly timeoutSeconds: number;
}

/** The changes of `key`, until `ended` aborts: then it throws its reason. */
async function* changes(means: Watching, key: string, ended: AbortSignal): AsyncGenerator<Leadership, void> {
  const known = new Known();
  const rests = new Rests();
  const place = { id: "" };
  for (;;) {
    const begunAt = means.clock.now();
    let retryAfter: number | null = null;
    try {
      yield* followed(means, key, ended, known, place);
    } catch (error) {
      ended.throwIfAborted();
      if (!(error instanceof VolcanoError && worthARest(error))) throw error;
      retryAfter = error.retryAfter;
    }
    if (means.clock.now() - begunAt >= LASTED_SECONDS) rests.reset();
    await restUntil(means.clock, means.clock.now() + rests.next(retryAfter), ended);
    ended.throwIfAborted();
  }
}

/** What one stream tells, and the reading at its begin, until it ends or something is missing. */
async function* followed(
  { flows, timeoutSeconds }: Watching,
  key: string,
  ended: AbortSignal,
  known: Known,
  place: { id: string },
): AsyncGenerator<Leadership, void> {
  const requestId = newUuid();
  const pace = { requestId, signal: ended, timeoutSeconds, attempts: 1 };
  const read = (): Promise<LockView> => flows.view(key, { ...pace, requestId: newUuid() });
  const chunks = await flows.events(key, HEADER_VALUE.test(place.id) ? place.id : null, pace);
  ended.addEventListener("abort", chunks.end);
  try {
    const stream = blocks(chunks, requestId);
    let block = await stream.next();
    // The first block says that the stream has begun, and where: whatever happens later, it will tell.
    let change = known.view(await read());
    if (change !== null) yield change;
    for (; !block.done; block = await stream.next()) {
      const { kind, data, id } = block.value;
      place.id = id || place.id;
      if (kind === RESET) {
        change = known.view(await read());
      } else {
        const told = toldBy(kind, data, requestId);
        change = told === null ? null : known.event(told);
      }
      if (change !== null) yield change;
    }
  } finally {
    ended.removeEventListener("abort", chunks.end);
    chunks.end();
  }
}

async function* blocks(chunks: Chunks, requestId: string): AsyncGenerator<StreamEvent, void> {
  const reader = new EventReader();
  for (;;) {
    const bytes = await chunks.next(SILENCE_SECONDS_MAX);
    if (bytes === null) return;
    yield* whole(reader, bytes, requestId);
  }
}

function whole(reader: EventReader, bytes: Uint8Array, requestId: string): StreamEvent[] {
  try {
    return reader.read(bytes);
  } catch (error) {
    throw new TransportError((error as Error).message, { requestId });
  }
}
