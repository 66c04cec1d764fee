/**
 * What happened to the locks of a fake, as server-sent events for whoever watches.
 *
 * Each stream begins with its place, so that it can be gone on from, and says something every fifteen seconds. The last
 * `HAPPENINGS_MAX` events can be resumed from; older ones, and those from before a restart, are told as a `reset`.
 */

import type { ManualClock } from "./clock.ts";

export const HAPPENINGS_MAX = 1_000;
const COMMENT_EVERY_SECONDS = 15;

export interface Happening {
  readonly key: string;
  readonly kind: "acquired" | "renewed" | "released" | "expired" | "force_released" | "waiting" | "gave_up";
  readonly fencingToken: number | null;
  readonly holder: string | null;
  readonly why: string;
  /** Milliseconds since 1970, of a lease that runs on. */
  readonly expiresAtMs?: number;
}

interface Told {
  readonly number: number;
  readonly key: string;
  readonly text: string;
}

interface Stream {
  readonly matches: (key: string) => boolean;
  write(text: string): void;
  end(): void;
}

/** The happenings of one fake. */
export class Happenings {
  readonly #clock: ManualClock;
  readonly #streams: Set<Stream> = new Set();
  #told: Told[] = [];
  #number = 0;
  #begins = 1;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  watched(key: string): boolean {
    return [...this.#streams].some((stream) => stream.matches(key));
  }

  tell({ key, kind, fencingToken, holder, why, expiresAtMs }: Happening): void {
    const at = this.#clock.utcNow().toISOString();
    const until = expiresAtMs === undefined ? {} : { expires_at: new Date(expiresAtMs).toISOString() };
    const data = { key, fencing_token: fencingToken, holder, at, why, ...until };
    this.#number += 1;
    const text = `id: ${this.#number}\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;
    this.#told.push({ number: this.#number, key, text });
    if (this.#told.length > HAPPENINGS_MAX) this.#begins = (this.#told.shift()?.number ?? 0) + 1;
    for (const stream of this.#streams) {
      if (stream.matches(key)) stream.write(text);
    }
  }

  /** Ends every stream, and what was told before cannot be resumed. */
  restart(): void {
    for (const stream of [...this.#streams]) stream.end();
    this.#told = [];
    this.#number += 1;
    this.#begins = this.#number + 1;
  }

  /** A stream of the events of all keys that `matches`, from behind the one that `lastEventId` names. */
  stream(matches: (key: string) => boolean, lastEventId: string | null, signal: AbortSignal | null): Response {
    const encoder = new TextEncoder();
    let close = (): void => {};
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        const write = (text: string): void => controller.enqueue(encoder.encode(text));
        const onAbort = (): void => {
          close();
          controller.error(signal?.reason);
        };
        let forget = (): void => {};
        const comment = (): void => {
          forget = this.#clock.at(this.#clock.now() + COMMENT_EVERY_SECONDS, () => {
            write(":\n\n");
            comment();
          });
        };
        const stream: Stream = {
          matches,
          write,
          end: () => {
            close();
            controller.close();
          },
        };
        close = () => {
          forget();
          this.#streams.delete(stream);
          signal?.removeEventListener("abort", onAbort);
        };
        signal?.addEventListener("abort", onAbort);
        this.#streams.add(stream);
        write(this.#opening(matches, lastEventId));
        comment();
      },
      cancel: () => close(),
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  #opening(matches: (key: string) => boolean, lastEventId: string | null): string {
    const here = `retry: 1000\n: watching\nid: ${this.#number}\n\n`;
    if (lastEventId === null) return here;
    const last = Number(lastEventId);
    if (last >= this.#begins - 1 && last <= this.#number) {
      const missed = this.#told.filter((one) => one.number > last && matches(one.key));
      return `retry: 1000\n: watching\nid: ${last}\n\n${missed.map((one) => one.text).join("")}`;
    }
    const data = JSON.stringify({
      at: this.#clock.utcNow().toISOString(),
      why: Number.isInteger(last) ? "too_old" : "unknown_id",
    });
    return `${here}id: ${this.#number}\nevent: reset\ndata: ${data}\n\n`;
  }
}
