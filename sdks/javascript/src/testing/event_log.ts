/**
 * The event log of a fake server: publishes lock events to subscribers as server-sent events.
 *
 * Each stream starts with its position, so that it can be resumed, and sends a comment every fifteen seconds. A subscriber
 * can resume from the last `EVENTS_KEPT_MAX` events. For an older position, or one before a restart, it gets a `reset`.
 */

import { whenAborted } from "../abort.ts";

import type { ManualClock } from "./clock.ts";

export const EVENTS_KEPT_MAX = 1_000;
const COMMENT_EVERY_SECONDS = 15;

export interface LockEvent {
  readonly key: string;
  readonly kind: "acquired" | "renewed" | "released" | "expired" | "force_released" | "waiting" | "gave_up";
  readonly fencingToken: number | null;
  readonly holder: string | null;
  readonly why: string;
  /** Milliseconds since 1970; only if the lock is still held. */
  readonly expiresAtMs?: number | undefined;
  /** Why an operator forced the release; only if they said so. */
  readonly reason?: string | undefined;
}

interface LoggedEvent {
  readonly number: number;
  readonly key: string;
  readonly text: string;
}

interface Subscriber {
  readonly matches: (key: string) => boolean;
  write(text: string): void;
  end(): void;
}

/** The events of one fake server. */
export class EventLog {
  readonly #clock: ManualClock;
  readonly #subscribers: Set<Subscriber> = new Set();
  #events: LoggedEvent[] = [];
  #number = 0;
  #oldest = 1;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  hasSubscriber(key: string): boolean {
    return [...this.#subscribers].some((subscriber) => subscriber.matches(key));
  }

  publish({ key, kind, fencingToken, holder, why, expiresAtMs, reason }: LockEvent): void {
    const at = this.#clock.utcNow().toISOString();
    const until = expiresAtMs === undefined ? {} : { expires_at: new Date(expiresAtMs).toISOString() };
    const given = reason === undefined ? {} : { reason };
    const data = { key, fencing_token: fencingToken, holder, at, why, ...until, ...given };
    this.#number += 1;
    const text = `id: ${this.#number}\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;
    this.#events.push({ number: this.#number, key, text });
    if (this.#events.length > EVENTS_KEPT_MAX) this.#oldest = (this.#events.shift()?.number ?? 0) + 1;
    for (const subscriber of this.#subscribers) {
      if (subscriber.matches(key)) subscriber.write(text);
    }
  }

  /** Ends every stream. Earlier events can no longer be resumed. */
  restart(): void {
    for (const subscriber of [...this.#subscribers]) subscriber.end();
    this.#events = [];
    this.#number += 1;
    this.#oldest = this.#number + 1;
  }

  /** Opens a stream of the events of all matching keys, after `lastEventId` if given. */
  subscribe(matches: (key: string) => boolean, lastEventId: string | null, signal: AbortSignal | null): Response {
    const encoder = new TextEncoder();
    let close = (): void => {};
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        const write = (text: string): void => controller.enqueue(encoder.encode(text));
        const removeCallback = whenAborted(signal, () => {
          close();
          controller.error(signal?.reason);
        });
        let cancelComment = (): void => {};
        const comment = (): void => {
          cancelComment = this.#clock.at(this.#clock.now() + COMMENT_EVERY_SECONDS, () => {
            write(":\n\n");
            comment();
          });
        };
        const subscriber: Subscriber = {
          matches,
          write,
          end: () => {
            close();
            controller.close();
          },
        };
        close = () => {
          cancelComment();
          this.#subscribers.delete(subscriber);
          removeCallback();
        };
        this.#subscribers.add(subscriber);
        write(this.#preamble(matches, lastEventId));
        comment();
      },
      cancel: () => close(),
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  #preamble(matches: (key: string) => boolean, lastEventId: string | null): string {
    const here = `retry: 1000\n: watching\nid: ${this.#number}\n\n`;
    if (lastEventId === null) return here;
    const last = Number(lastEventId);
    if (last >= this.#oldest - 1 && last <= this.#number) {
      const missed = this.#events.filter((one) => one.number > last && matches(one.key));
      return `retry: 1000\n: watching\nid: ${last}\n\n${missed.map((one) => one.text).join("")}`;
    }
    const why = Number.isInteger(last) ? "too_old" : "unknown_id";
    const data = JSON.stringify({ at: this.#clock.utcNow().toISOString(), why });
    return `${here}id: ${this.#number}\nevent: reset\ndata: ${data}\n\n`;
  }
}
