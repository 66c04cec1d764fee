/**
 * Sends requests through a sender, with a time-out on the client's clock, and keeps secrets out of the results.
 *
 * The time-out is measured from the first byte to the last, so a slow server or a suspended machine cannot extend it. It
 * also applies if the sender ignores `abort`. Errors and response texts never contain a token or the service key, even
 * if a proxy echoed them (SDK-8): the message of a sender's error is redacted and copied, and the error itself is not
 * attached.
 */

import { whenAborted } from "../abort.ts";

import type { Clock } from "../clock.ts";
import type { Config } from "../config.ts";
import { TransportError, VolcanoError } from "../errors.ts";
import type { LockResponse } from "../protocol/messages.ts";
import { isError, readProperty, textOf } from "../unknown_values.ts";
import { VERSION } from "../version.ts";
import { type IncomingResponse, type Sender, TUNNEL_REFUSED } from "./sender.ts";

export const RESPONSE_BYTES_MAX = 65_536;
const USER_AGENT = `volcano-locks-javascript/${VERSION}`;
const REQUEST_ID = "X-Volcano-Request-Id";
const JSON_TYPE = "application/json";
const STREAM_TYPE = "text/event-stream";
const HIDDEN = "[hidden]";

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
  /** Why an operator forces the lock free. */
  readonly reason?: string;
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

/** Error codes of failed connections: the request was certainly not sent (not every runtime has them). */
const NO_CONNECTION: ReadonlyMap<unknown, string | null> = new Map([
  ["ECONNREFUSED", "the connection was refused"],
  ["ConnectionRefused", "the connection was refused"],
  ["ENOTFOUND", "the host name is unknown"],
  ["EAI_AGAIN", "the host name could not be looked up"],
  ["EHOSTUNREACH", "the host cannot be reached"],
  ["ENETUNREACH", "the network cannot be reached"],
  ["UND_ERR_CONNECT_TIMEOUT", "the connection was not accepted in time"],
  [TUNNEL_REFUSED, null],
]);

/** Ends the exchange of a request that was sent. */
interface Connection {
  abort(): void;
}

/** Sends requests with the service key and the holder's label of `config`. */
export class Transport {
  readonly #config: Config;
  readonly #clock: Clock;
  readonly #sender: Sender;
  /** Names the proxy in messages. */
  readonly #through: string;

  constructor(config: Config, clock: Clock, sender: Sender) {
    this.#config = config;
    this.#clock = clock;
    this.#sender = sender;
    const { proxy } = sender;
    this.#through = proxy ? ` through the proxy ${proxy.origin} of ${proxy.variable}` : "";
  }

  /** Sends a request and resolves with the response of any status, or rejects with a `TransportError` if none comes. */
  send(request: LockRequest, signal?: AbortSignal): Promise<LockResponse> {
    const connection: Connection = { abort: () => {} };
    const exchange = async (): Promise<LockResponse> =>
      this.#readResponse(await this.#startExchange(request, connection, JSON_TYPE), request, connection);
    return this.#withTimeout(request.timeoutSeconds, exchange, request, connection, signal);
  }

  /** Opens an event stream; any other response is read completely. The time-out covers the start of the stream. */
  async open(request: LockRequest, signal?: AbortSignal): Promise<OpenedStream> {
    const connection: Connection = { abort: () => {} };
    const start = async (): Promise<{ streaming: IncomingResponse } | { response: LockResponse }> => {
      const response = await this.#startExchange(request, connection, STREAM_TYPE);
      const [type] = (response.header("Content-Type") ?? "").split(";");
      if (response.status === 200 && type?.trim().toLowerCase() === STREAM_TYPE) return { streaming: response };
      return { response: await this.#readResponse(response, request, connection) };
    };
    const started = await this.#withTimeout(request.timeoutSeconds, start, request, connection, signal);
    if ("response" in started) return started;
    const next = (): Promise<Uint8Array | null> => started.streaming.read();
    return {
      stream: {
        next: (seconds) => this.#withTimeout(seconds, next, request, connection, signal),
        end: () => connection.abort(),
      },
    };
  }

  /** Runs `work` with a time-out and the caller's signal; either one rejects it and aborts the connection. */
  #withTimeout<T>(
    seconds: number,
    work: () => Promise<T>,
    request: LockRequest,
    connection: Connection,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    const target = this.#describe(request);
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
      // A second timer, so that a response that arrived while the event loop was blocked wins.
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

  async #startExchange(request: LockRequest, connection: Connection, accept: string): Promise<IncomingResponse> {
    const exchange = this.#sender.send({
      method: request.method,
      path: request.path,
      headers: { ...this.#headers(request), Accept: accept },
      body: request.ttlSeconds === undefined ? undefined : requestBody(request),
    });
    connection.abort = exchange.abort;
    const response = await exchange.response;
    const requestId = firstValue(response.header(REQUEST_ID));
    if (requestId === null || requestId.toLowerCase() === request.requestId.toLowerCase()) return response;
    // A stray response for another request; later responses on this connection would be misassigned too.
    connection.abort();
    throw unusableResponse(request, "belongs to another request");
  }

  async #readResponse(response: IncomingResponse, request: LockRequest, connection: Connection): Promise<LockResponse> {
    const text = this.#redact(await readText(response, request, connection), request);
    const header = (name: string): string | null => firstValue(response.header(name));
    const url = `${this.#config.apiUrl}${request.path}`;
    return { status: response.status, text, header, through: this.#through, url };
  }

  #headers(request: LockRequest): Record<string, string> {
    return {
      Authorization: `Bearer ${this.#config.serviceKey}`,
      "User-Agent": USER_AGENT,
      [REQUEST_ID]: request.requestId,
      "X-Volcano-Lock-Holder": this.#config.holder,
      ...(request.token === undefined ? {} : { "X-Volcano-Lock-Token": request.token }),
      ...(request.ttlSeconds === undefined ? {} : { "Content-Type": JSON_TYPE }),
      ...(request.reason === undefined ? {} : { "X-Volcano-Reason": encodeURIComponent(request.reason) }),
      ...(request.lastEventId === undefined ? {} : { "Last-Event-ID": request.lastEventId }),
    };
  }

  #describe({ method, path }: LockRequest): string {
    return `${method} ${path}${this.#through}`;
  }

  /** A `VolcanoError`, whatever the sender rejected with. Never throws, since the verb would then never settle. */
  #toVolcanoError(request: LockRequest, error: unknown): VolcanoError {
    if (error instanceof VolcanoError) return error;
    const reasons = [error, readProperty(error, "cause")].filter(isError);
    const code = reasons.map((one) => readProperty(one, "code")).find((one) => NO_CONNECTION.has(one));
    const why = reasons.map(describeReason).join("; ") || textOf(error);
    const text = code === undefined ? why : this.#noConnection(code, why);
    const message = this.#redact(`${this.#describe(request)}: ${text}`, request);
    return new TransportError(message, { requestSent: code === undefined, requestId: request.requestId });
  }

  /** Says which connection failed and what to check. */
  #noConnection(code: unknown, why: string): string {
    const { proxy } = this.#sender;
    const { protocol, hostname, port } = new URL(proxy?.origin ?? this.#config.apiUrl);
    const address = `${hostname}:${port || (protocol === "https:" ? 443 : 80)}`;
    const check = proxy
      ? `check that the proxy runs there, and ${proxy.variable} and NO_PROXY`
      : "check that the lock service runs there, and the apiUrl of the client (VOLCANO_API_URL)";
    return `no connection to ${address}: ${NO_CONNECTION.get(code) ?? why} (${code}); ${check}`;
  }

  #redact(text: string, { token }: LockRequest): string {
    const redacted = text.replaceAll(this.#config.serviceKey, HIDDEN);
    // A proxy may change the token's case. It is a UUID, so it needs no escaping.
    if (token === undefined || !redacted.toLowerCase().includes(token.toLowerCase())) return redacted;
    return redacted.replace(new RegExp(token, "gi"), HIDDEN);
  }
}

/** The name and the message of a sender's error. If connections to several addresses failed, Node's error has only a code. */
function describeReason(error: Error): string {
  const [name, message, code] = ["name", "message", "code"].map((property) =>
    textOf(readProperty(error, property) ?? "")
      .replace(/\s+/g, " ")
      .trim(),
  );
  return `${name}: ${message || code}`;
}

/** The first value of a header field that a proxy may have doubled (case 83). */
function firstValue(value: string | null): string | null {
  return value?.split(",")[0]?.trim() ?? null;
}

function requestBody({ ttlSeconds, waitSeconds }: LockRequest): string {
  return JSON.stringify({ ttl_seconds: ttlSeconds, wait_seconds: waitSeconds });
}

/** Reads the body up to a limit far above every valid response. */
async function readText(response: IncomingResponse, request: LockRequest, connection: Connection): Promise<string> {
  const bytesMax = request.responseBytesMax ?? RESPONSE_BYTES_MAX;
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for (;;) {
    const chunk = await response.read();
    if (chunk === null) return text + decoder.decode();
    bytes += chunk.byteLength;
    if (bytes > bytesMax) {
      connection.abort();
      throw unusableResponse(request, `is longer than ${bytesMax} bytes`);
    }
    text += decoder.decode(chunk, { stream: true });
  }
}

function unusableResponse(request: LockRequest, why: string): TransportError {
  return new TransportError(`${request.method} ${request.path}: the response ${why}`, { requestId: request.requestId });
}
