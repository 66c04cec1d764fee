/**
 * Sends HTTP requests with the platform's `fetch` or a given one.
 *
 * The time-out is measured on the client's clock from the first byte to the last, so a slow server or a suspended
 * machine cannot extend it. It also applies if `fetch` ignores its signal. Redirects are not followed: the service
 * sends none, and the service key must go to the configured address only. Errors and response texts never contain a
 * token or the service key, even if a proxy echoed them (SDK-8): the message of an error of `fetch` is redacted and
 * copied, and the error itself is not attached.
 */

import { whenAborted } from "../abort.ts";

import type { Clock } from "../clock.ts";
import type { Config } from "../config.ts";
import { TransportError, VolcanoError } from "../errors.ts";
import type { LockResponse } from "../protocol/messages.ts";
import { VERSION } from "../version.ts";

export const RESPONSE_BYTES_MAX = 65_536;
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
  /** How long the request may wait in the lock's queue. */
  readonly waitSeconds?: number;
  /** The longest response to read; defaults to `RESPONSE_BYTES_MAX`. */
  readonly responseBytesMax?: number;
  /** For a stream: resume after this event. */
  readonly lastEventId?: string;
}

/** An open stream, or the complete response that came instead. */
export type OpenedStream = { readonly stream: ByteStream } | { readonly response: LockResponse };

/** The body of a streaming response. The caller that opened it must end it. */
export interface ByteStream {
  /** The next bytes, or null at the end. Rejects with a `TransportError` if none arrive within `seconds`. */
  next(seconds: number): Promise<Uint8Array | null>;
  /** Ends the request. */
  end(): void;
}

/** Error codes of `fetch` for requests that were certainly not sent (Node and Bun; other runtimes do not report it). */
const NOT_SENT_CODES: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
]);

/** Sends requests with the service key and the holder's label of `config`. */
export class Transport {
  readonly #config: Config;
  readonly #clock: Clock;
  readonly #fetch: Fetch;

  constructor(config: Config, clock: Clock, fetch: Fetch) {
    this.#config = config;
    this.#clock = clock;
    this.#fetch = fetch;
  }

  /** Sends a request and resolves with the response of any status, or rejects with a `TransportError` if none comes. */
  send(request: LockRequest, signal?: AbortSignal): Promise<LockResponse> {
    const connection = new AbortController();
    const exchange = async (): Promise<LockResponse> =>
      this.#readResponse(await this.#fetchResponse(request, connection, JSON_TYPE), request);
    return this.#withTimeout(request.timeoutSeconds, exchange, request, connection, signal);
  }

  /** Opens an event stream; any other response is read completely. The time-out covers the start of the stream. */
  async open(request: LockRequest, signal?: AbortSignal): Promise<OpenedStream> {
    const connection = new AbortController();
    const start = async (): Promise<{ streaming: Response } | { response: LockResponse }> => {
      const response = await this.#fetchResponse(request, connection, STREAM_TYPE);
      const isStream = response.status === 200 && response.headers.get("Content-Type")?.startsWith(STREAM_TYPE);
      return isStream ? { streaming: response } : { response: await this.#readResponse(response, request) };
    };
    const started = await this.#withTimeout(request.timeoutSeconds, start, request, connection, signal);
    if ("response" in started) return started;
    const reader = started.streaming.body?.getReader();
    const next = async (): Promise<Uint8Array | null> => (await reader?.read())?.value ?? null;
    return {
      stream: {
        next: (seconds) => this.#withTimeout(seconds, next, request, connection, signal),
        end: () => {
          connection.abort();
          reader?.cancel().catch(() => {});
        },
      },
    };
  }

  /** Runs `work` with a time-out and the caller's signal; either one rejects it and aborts the connection. */
  #withTimeout<T>(
    seconds: number,
    work: () => Promise<T>,
    request: LockRequest,
    connection: AbortController,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    const target = `${request.method} ${request.path}`;
    const { requestId } = request;
    const cancelled = (requestSent: boolean): TransportError => {
      const message = `${target}: cancelled by the caller's signal`;
      return new TransportError(message, { requestSent, requestId, cause: signal?.reason });
    };
    if (signal?.aborted) return Promise.reject(cancelled(false));
    if (seconds <= 0) {
      return Promise.reject(new TransportError(`${target}: not sent, no time left`, { requestSent: false, requestId }));
    }
    const until = this.#clock.now() + seconds;
    return new Promise((resolve, reject) => {
      const end = (settle: () => void): void => {
        cancelTimer();
        removeCallback();
        settle();
      };
      const abort = (error: TransportError): void => {
        end(() => reject(error));
        connection.abort();
      };
      const late = `${target}: no response within ${Number(seconds.toPrecision(3))} seconds`;
      const onTimeout = (): void => abort(new TransportError(late, { requestId }));
      // A second timer lets a response win that arrived while the event loop was blocked.
      let cancelTimer = this.#clock.at(until, () => {
        cancelTimer = this.#clock.at(until, onTimeout);
      });
      const removeCallback = whenAborted(signal, () => abort(cancelled(true)));
      work().then(
        (result) => end(() => resolve(result)),
        (error) => end(() => reject(this.#toVolcanoError(request, error))),
      );
    });
  }

  async #fetchResponse(request: LockRequest, connection: AbortController, accept: string): Promise<Response> {
    const response = await this.#fetch(this.#config.apiUrl + request.path, {
      method: request.method,
      headers: { ...this.#headers(request), Accept: accept },
      redirect: "manual",
      signal: connection.signal,
      ...(request.ttlSeconds === undefined ? {} : { body: requestBody(request) }),
    });
    const requestId = response.headers.get(REQUEST_ID);
    if (requestId === null || requestId.toLowerCase() === request.requestId.toLowerCase()) return response;
    // A stray response for another request; later responses on this connection would be misassigned too.
    response.body?.cancel().catch(() => {});
    throw unusableResponse(request, "belongs to another request");
  }

  async #readResponse(response: Response, request: LockRequest): Promise<LockResponse> {
    const text = this.#redact(await readText(response, request), request);
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

  #toVolcanoError(request: LockRequest, error: unknown): VolcanoError {
    if (error instanceof VolcanoError) return error;
    const reasons = [error, (error as { cause?: unknown } | null)?.cause].filter((one) => one instanceof Error);
    const codes = [error, ...reasons].map((one) => (one as { code?: unknown } | null)?.code);
    const why = reasons.length === 0 ? String(error) : reasons.map((one) => `${one.name}: ${one.message}`).join("; ");
    const message = this.#redact(`${request.method} ${request.path}: ${why}`, request);
    const requestSent = !codes.some((code) => NOT_SENT_CODES.has(code));
    return new TransportError(message, { requestSent, requestId: request.requestId });
  }

  #redact(text: string, request: LockRequest): string {
    const redacted = text.replaceAll(this.#config.serviceKey, HIDDEN);
    // A token is a UUID, so it needs no escaping. A proxy may change its case.
    return request.token === undefined ? redacted : redacted.replace(new RegExp(request.token, "gi"), HIDDEN);
  }
}

function requestBody({ ttlSeconds, waitSeconds }: LockRequest): string {
  return JSON.stringify({ ttl_seconds: ttlSeconds, wait_seconds: waitSeconds });
}

/** Reads the body up to a limit far above every valid response. */
async function readText(response: Response, request: LockRequest): Promise<string> {
  if (response.body === null) return "";
  const bytesMax = request.responseBytesMax ?? RESPONSE_BYTES_MAX;
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
      throw unusableResponse(request, `is longer than ${bytesMax} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

function unusableResponse(request: LockRequest, why: string): TransportError {
  return new TransportError(`${request.method} ${request.path}: the response ${why}`, { requestId: request.requestId });
}
