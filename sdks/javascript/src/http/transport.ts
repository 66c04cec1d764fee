/**
 * One request on the wire, by the platform's `fetch` or the one given.
 *
 * The time a request takes is measured on the client's clock from its first byte to its last, so that a server which
 * trickles, or a machine that was suspended, cannot stretch it; it ends on time even if `fetch` does not listen to its
 * signal. Redirects are not followed: the service sends none, and the service key goes to the configured address
 * only. Nothing told here holds a token or the service key, also when a proxy echoed them (SDK-8): what `fetch` threw
 * is retold, not attached.
 */

import type { Clock } from "../clock.ts";
import type { Config } from "../config.ts";
import { TransportError, VolcanoError } from "../errors.ts";
import type { Answer } from "../protocol/messages.ts";
import { VERSION } from "../version.ts";

export const ANSWER_BYTES_MAX = 65_536;
const USER_AGENT = `volcano-locks-javascript/${VERSION}`;
const REQUEST_ID = "X-Volcano-Request-Id";
const JSON_TYPE = "application/json";
const STREAM_TYPE = "text/event-stream";
const HIDDEN = "[hidden]";

/** The part of `fetch` that is used. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** One HTTP request below the API URL. */
export interface LockRequest {
  readonly method: "GET" | "POST" | "PATCH" | "DELETE";
  readonly path: string;
  readonly requestId: string;
  readonly timeoutSeconds: number;
  readonly token?: string;
  readonly ttlSeconds?: number;
  /** How long the service may keep the request in the lock's line. */
  readonly waitSeconds?: number;
  /** The longest answer to read, `ANSWER_BYTES_MAX` if left out. */
  readonly answerBytesMax?: number;
  /** Of a stream: the event to go on behind. */
  readonly lastEventId?: string;
}

/** An answer that is a stream, or else the whole answer that came instead of one. */
export type Opened = { readonly chunks: Chunks } | { readonly answer: Answer };

/** A stream under way. It belongs to whoever opened it, who ends it. */
export interface Chunks {
  /** The next bytes, null at the stream's end; a `TransportError` once nothing came for `seconds`. */
  next(seconds: number): Promise<Uint8Array | null>;
  /** Ends the request. */
  end(): void;
}

/** What `fetch` fails with when the request certainly never left (Node and Bun; elsewhere nobody can tell). */
const NEVER_LEFT: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
]);

/** Sends requests with the key and the holder's label of `config`. */
export class Sender {
  readonly #config: Config;
  readonly #clock: Clock;
  readonly #fetch: Fetch;

  constructor(config: Config, clock: Clock, fetch: Fetch) {
    this.#config = config;
    this.#clock = clock;
    this.#fetch = fetch;
  }

  /** The answer, whatever its status. Anything else is a `TransportError`, at the latest when the time is up. */
  send(request: LockRequest, signal?: AbortSignal): Promise<Answer> {
    const connection = new AbortController();
    const answer = async (): Promise<Answer> =>
      this.#whole(await this.#response(request, connection, JSON_TYPE), request);
    return this.#within(request.timeoutSeconds, answer, request, connection, signal);
  }

  /** A stream of events, which begins in time; any other answer in whole. */
  async open(request: LockRequest, signal?: AbortSignal): Promise<Opened> {
    const connection = new AbortController();
    const begin = async (): Promise<{ response: Response } | { answer: Answer }> => {
      const response = await this.#response(request, connection, STREAM_TYPE);
      const begins = response.status === 200 && response.headers.get("Content-Type")?.startsWith(STREAM_TYPE);
      return begins ? { response } : { answer: await this.#whole(response, request) };
    };
    const begun = await this.#within(request.timeoutSeconds, begin, request, connection, signal);
    if ("answer" in begun) return begun;
    const reader = begun.response.body?.getReader();
    const next = async (): Promise<Uint8Array | null> => (await reader?.read())?.value ?? null;
    return {
      chunks: {
        next: (seconds) => this.#within(seconds, next, request, connection, signal),
        end: () => {
          connection.abort();
          reader?.cancel().catch(() => {});
        },
      },
    };
  }

  /** What `work` gives, or a `TransportError`, at the latest when the time is up; then the connection is ended. */
  #within<T>(
    seconds: number,
    work: () => Promise<T>,
    request: LockRequest,
    connection: AbortController,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    const told = `${request.method} ${request.path}`;
    const { requestId } = request;
    if (signal?.aborted) return Promise.reject(cancelled(told, requestId, false, signal));
    if (seconds <= 0) {
      return Promise.reject(new TransportError("no time left to ask", { requestSent: false, requestId }));
    }
    const until = this.#clock.now() + seconds;
    return new Promise((resolve, reject) => {
      const end = (settle: () => void): void => {
        forgetTime();
        signal?.removeEventListener("abort", onAbort);
        settle();
      };
      const breakOff = (error: TransportError): void => {
        end(() => reject(error));
        connection.abort();
      };
      const late = `${told}: no answer within ${Number(seconds.toPrecision(3))} seconds`;
      const timeIsUp = (): void => breakOff(new TransportError(late, { requestId }));
      // Two steps: an answer that had come while this program was busy is looked at before its time is called up.
      let forgetTime = this.#clock.at(until, () => {
        forgetTime = this.#clock.at(until, timeIsUp);
      });
      const onAbort = (): void => breakOff(cancelled(told, requestId, true, signal));
      signal?.addEventListener("abort", onAbort);
      work().then(
        (result) => end(() => resolve(result)),
        (error) => end(() => reject(this.#failure(request, error))),
      );
    });
  }

  async #response(request: LockRequest, connection: AbortController, accept: string): Promise<Response> {
    const response = await this.#fetch(this.#config.apiUrl + request.path, {
      method: request.method,
      headers: { ...this.#headers(request), Accept: accept },
      redirect: "manual",
      signal: connection.signal,
      ...(request.ttlSeconds === undefined ? {} : { body: bodyOf(request) }),
    });
    const told = response.headers.get(REQUEST_ID);
    if (told === null || told.toLowerCase() === request.requestId.toLowerCase()) return response;
    // It came unasked, just as this request went out: what comes next on its connection is somebody else's as well.
    response.body?.cancel().catch(() => {});
    throw unusable(request, "is to another request");
  }

  async #whole(response: Response, request: LockRequest): Promise<Answer> {
    const text = this.#withoutSecrets(await wholeText(response, request), request);
    return { status: response.status, text, header: (name) => response.headers.get(name) };
  }

  #headers(request: LockRequest): Record<string, string> {
    return {
      Authorization: `Bearer ${this.#config.serviceKey}`,
      "User-Agent": USER_AGENT,
      [REQUEST_ID]: request.requestId,
      "X-Volcano-Lock-Holder": this.#config.holder,
      ...(request.token === undefined ? {} : { "X-Volcano-Lock-Token": request.token }),
      ...(request.ttlSeconds === undefined ? {} : { "Content-Type": JSON_TYPE }),
      ...(request.lastEventId === undefined ? {} : { "Last-Event-ID": request.lastEventId }),
    };
  }

  #failure(request: LockRequest, error: unknown): VolcanoError {
    if (error instanceof VolcanoError) return error;
    const reasons = [error, (error as { cause?: unknown } | null)?.cause].filter((one) => one instanceof Error);
    const codes = [error, ...reasons].map((one) => (one as { code?: unknown } | null)?.code);
    const why = reasons.length === 0 ? String(error) : reasons.map((one) => `${one.name}: ${one.message}`).join("; ");
    const message = this.#withoutSecrets(`${request.method} ${request.path}: ${why}`, request);
    const requestSent = !codes.some((code) => NEVER_LEFT.has(code));
    return new TransportError(message, { requestSent, requestId: request.requestId });
  }

  #withoutSecrets(text: string, request: LockRequest): string {
    const told = text.replaceAll(this.#config.serviceKey, HIDDEN);
    // A token is a UUID: it needs no escaping, and a proxy may repeat it in another case.
    return request.token === undefined ? told : told.replace(new RegExp(request.token, "gi"), HIDDEN);
  }
}

function bodyOf({ ttlSeconds, waitSeconds }: LockRequest): string {
  return JSON.stringify({ ttl_seconds: ttlSeconds, wait_seconds: waitSeconds });
}

/** The body, up to a limit that no answer of the service comes near. */
async function wholeText(response: Response, request: LockRequest): Promise<string> {
  if (response.body === null) return "";
  const bytesMax = request.answerBytesMax ?? ANSWER_BYTES_MAX;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.byteLength;
    if (bytes > bytesMax) {
      reader.cancel().catch(() => {});
      throw unusable(request, `longer than ${bytesMax} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

function unusable(request: LockRequest, why: string): TransportError {
  return new TransportError(`${request.method} ${request.path}: answer ${why}`, { requestId: request.requestId });
}

function cancelled(
  told: string,
  requestId: string,
  requestSent: boolean,
  signal: AbortSignal | undefined,
): TransportError {
  return new TransportError(`${told}: cancelled by the caller's signal`, {
    requestSent,
    requestId,
    cause: signal?.reason,
  });
}
