/**
 * What each verb does: which requests it sends, which failure is worth another try, and how it clears up.
 *
 * SDK-1: token and request id are made before the first send and kept through every retry.
 * SDK-2: an acquire is sent at most twice; a refusal (4xx) is an answer. If any attempt may have been served and the
 * caller does not get the lease, a release with its token follows, also after the caller's `signal` aborted.
 * SDK-18: no release follows if the caller can recover the lease, with a token of its own.
 *
 * Not promised: that this release arrives. Until it does the lock may stay held for one TTL; acquiring again with the
 * same `token` then gives the same lease.
 */

import type { Clock } from "../clock.ts";
import {
  attach,
  LockOwnershipLostError,
  ServerError,
  TransportError,
  UnavailableError,
  VolcanoError,
} from "../errors.ts";
import type { Chunks, LockRequest, Sender } from "../http/transport.ts";
import { type LockView, type Page, pageOf, viewOf } from "./lock_view.ts";
import { type Answer, grantedTerm, malformed, newUuid, readTerm, refusalFrom, type Term } from "./messages.ts";

export const ATTEMPTS_MAX = 2;
export const GIVE_UP_SECONDS_MAX = 2;
export const RETRY_PAUSE_SECONDS = 0.5;
export const RETRY_PAUSE_SECONDS_MAX = 2;
const PAGE_ROWS_MAX = 500;
const PAGE_BYTES_MAX = 1_048_576;
const REQUEST_TIMEOUT_STATUS = 408;

/** A term, and the instant on the client's clock after which not to rely on it. */
export interface Granted extends Term {
  readonly deadline: number;
}

/** Who asks about which lease. */
export interface Owner {
  readonly key: string;
  readonly token: string;
}

/** What all verbs take: the id of the request, what the caller may stop it with, and how long it may take. */
export interface Pace {
  readonly requestId: string;
  readonly signal?: AbortSignal | undefined;
  /** The most one request may take, in seconds. */
  readonly timeoutSeconds: number;
  /** The instant on the client's clock that the verb must end by. */
  readonly until?: number;
  readonly attempts?: number;
}

/** A grant that came after the time it granted (case 14). */
class LateAnswerError extends TransportError {}

/** The verbs of one client. Each resolves with what was asked for, or rejects with a `VolcanoError`. */
export class Flows {
  readonly #sender: Sender;
  readonly #clock: Clock;

  constructor(sender: Sender, clock: Clock) {
    this.#sender = sender;
    this.#clock = clock;
  }

  /**
   * A lease whose deadline is `time before its request + ttl`; an answer later than that is no lease. With `onUncertain`
   * the caller recovers an unknown outcome: it is called instead of sending a release, before the failure is thrown.
   */
  async acquire(owner: Owner, ttlSeconds: number, pace: Pace, onUncertain?: () => void): Promise<Granted> {
    let uncertain = false;
    const once = async (): Promise<Granted> => {
      try {
        return inTime(owner, await this.acquireOnce(owner, ttlSeconds, 0, pace), this.#clock, pace);
      } catch (error) {
        uncertain ||= mayHaveBeenServed(error);
        throw error;
      }
    };
    try {
      return await this.#retried(once, pace);
    } catch (error) {
      if (onUncertain !== undefined && isUncertain(error) && !pace.signal?.aborted) onUncertain();
      else if (uncertain) attach(error, await this.giveUp(owner));
      throw error;
    }
  }

  /**
   * One request for a lease, which the service may keep in the lock's line for `waitSeconds`. The deadline it grants
   * may have passed before the answer came: nothing here looks.
   */
  acquireOnce(owner: Owner, ttlSeconds: number, waitSeconds: number, pace: Pace): Promise<Granted> {
    const timeoutSeconds = waitSeconds + Math.min(pace.timeoutSeconds, ttlSeconds);
    const more = waitSeconds > 0 ? { waitSeconds } : {};
    return this.#granted("POST", 201, owner, ttlSeconds, { ...pace, timeoutSeconds }, more);
  }

  /** Not cut short by the caller's signal; why it failed is attached to the acquire's error, which is what is told. */
  async giveUp(owner: Owner): Promise<VolcanoError | null> {
    const pace = { requestId: newUuid(), timeoutSeconds: GIVE_UP_SECONDS_MAX };
    try {
      await this.#ask("DELETE", leasePath(owner.key), 204, pace, { token: owner.token });
      return null;
    } catch (error) {
      return error as VolcanoError;
    }
  }

  /** The same lease with a new expiry; it keeps its fencing token and its owner token. */
  renew(owner: Owner, ttlSeconds: number, pace: Pace): Promise<Granted> {
    const once = async (): Promise<Granted> =>
      inTime(owner, await this.#granted("PATCH", 200, owner, ttlSeconds, pace), this.#clock, pace);
    return this.#retried(once, pace);
  }

  /**
   * Nothing, once the service said that the lock is not held with this token. If an earlier attempt may have been
   * served, "not yours" is what its success looks like after somebody else took the lock: the token holds nothing
   * any more, which is all that was asked (case 19).
   */
  async release(owner: Owner, pace: Pace): Promise<void> {
    let uncertain = false;
    const once = async (): Promise<void> => {
      try {
        await this.#ask("DELETE", leasePath(owner.key), 204, pace, { token: owner.token });
      } catch (error) {
        if (uncertain && error instanceof LockOwnershipLostError) return;
        uncertain ||= mayHaveBeenServed(error);
        throw error;
      }
    };
    await this.#retried(once, pace);
  }

  /** The term of a held lock, null for a free one. */
  get(key: string, pace: Pace): Promise<Term | null> {
    const once = async (): Promise<Term | null> =>
      readTerm(await this.#ask("GET", lockPath(key), 200, pace), pace.requestId);
    return this.#retried(once, pace);
  }

  /** What there is to see of a lock. */
  view(key: string, pace: Pace): Promise<LockView> {
    const once = async (): Promise<LockView> =>
      viewOf(await this.#ask("GET", `${lockPath(key)}?view=full`, 200, pace), pace.requestId);
    return this.#retried(once, pace);
  }

  /** One page of the list. */
  page(prefix: string, state: string, cursor: string | null, pace: Pace): Promise<Page> {
    const asked = new URLSearchParams({ prefix, state, limit: String(PAGE_ROWS_MAX) });
    if (cursor !== null) asked.set("cursor", cursor);
    const more = { answerBytesMax: PAGE_BYTES_MAX };
    const once = async (): Promise<Page> => {
      const answer = await this.#ask("GET", `/locks?${asked}`, 200, pace, more);
      const page = pageOf(answer, pace.requestId);
      if (page.nextCursor === null || page.nextCursor !== cursor) return page;
      throw malformed(answer, "its next page is this one", pace.requestId);
    };
    return this.#retried(once, pace);
  }

  /** The lock's events from now on, or behind `lastEventId`. Asked for once. */
  async events(key: string, lastEventId: string | null, pace: Pace): Promise<Chunks> {
    const { requestId, timeoutSeconds } = pace;
    const resumed = lastEventId === null ? {} : { lastEventId };
    const request = { method: "GET", path: `${lockPath(key)}/events`, requestId, timeoutSeconds, ...resumed } as const;
    const opened = await this.#sender.open(request, pace.signal);
    if ("chunks" in opened) return opened.chunks;
    if (opened.answer.status === 200) throw malformed(opened.answer, "it is no stream of events", requestId);
    throw refusalFrom(opened.answer, requestId);
  }

  /** Nothing, once the lock is free. Sent again only if it never left: a second one could evict the next holder. */
  async forceRelease(key: string, pace: Pace): Promise<void> {
    const once = (): Promise<Answer> => this.#ask("DELETE", lockPath(key), 204, pace);
    await this.#retried(once, pace, (error) => !mayHaveBeenServed(error));
  }

  async #granted(
    method: "POST" | "PATCH",
    status: number,
    owner: Owner,
    ttlSeconds: number,
    pace: Pace,
    more: Pick<LockRequest, "waitSeconds"> = {},
  ): Promise<Granted> {
    const deadline = this.#clock.now() + ttlSeconds;
    const { key, token } = owner;
    const answer = await this.#ask(method, leasePath(key), status, pace, { token, ttlSeconds, ...more });
    return { ...grantedTerm(answer, pace.requestId), deadline };
  }

  async #ask(
    method: LockRequest["method"],
    path: string,
    status: number,
    pace: Pace,
    more: Pick<LockRequest, "token" | "ttlSeconds" | "waitSeconds" | "answerBytesMax"> = {},
  ): Promise<Answer> {
    const timeoutSeconds = Math.min(pace.timeoutSeconds, (pace.until ?? Number.POSITIVE_INFINITY) - this.#clock.now());
    const request: LockRequest = { method, path, requestId: pace.requestId, timeoutSeconds, ...more };
    const answer = await this.#sender.send(request, pace.signal);
    if (answer.status === status) return answer;
    throw refusalFrom(answer, pace.requestId);
  }

  async #retried<T>(once: () => Promise<T>, pace: Pace, worthIt: (error: unknown) => boolean = () => true): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await once();
      } catch (error) {
        const again = attempt < (pace.attempts ?? ATTEMPTS_MAX) && isUncertain(error) && worthIt(error);
        const pause = pauseAfter(error);
        const late = this.#clock.now() + pause >= (pace.until ?? Number.POSITIVE_INFINITY);
        if (!again || late || pace.signal?.aborted) throw error;
        if (pause > 0) await this.#clock.pause(pause, pace.signal);
      }
    }
  }
}

/** A valid key needs no escaping. */
function leasePath(key: string): string {
  return `/locks/${key}/lease`;
}

function lockPath(key: string): string {
  return `/locks/${key}`;
}

function inTime(owner: Owner, granted: Granted, clock: Clock, pace: Pace): Granted {
  if (clock.now() < granted.deadline) return granted;
  const late = `the lease of ${owner.key} had run out before the answer that granted it came`;
  throw new LateAnswerError(late, { requestId: pace.requestId });
}

/** Whether the outcome is unknown, so that the same request is worth another try. */
function isUncertain(error: unknown): boolean {
  if (error instanceof LateAnswerError) return false;
  return error instanceof TransportError || error instanceof UnavailableError;
}

/** Whether a request that failed so may have been served all the same. */
export function mayHaveBeenServed(error: unknown): boolean {
  if (error instanceof TransportError) return error.requestSent;
  if (error instanceof VolcanoError) return error instanceof ServerError || error.status === REQUEST_TIMEOUT_STATUS;
  return true;
}

/** A broken connection is tried anew at once; a service that asks for time gets some. */
function pauseAfter(error: unknown): number {
  if (!(error instanceof UnavailableError)) return 0;
  return Math.min(error.retryAfter ?? RETRY_PAUSE_SECONDS, RETRY_PAUSE_SECONDS_MAX);
}
