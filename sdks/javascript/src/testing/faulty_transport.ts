/**
 * Fault injection for tests: wraps a `fetch`, of a fake server or of the runtime, and fails by script.
 *
 * Each request takes the next fault of the script, and `otherwise` when the script is empty. `seen` records the requests,
 * so that a test can distinguish a retry with the same ids from a new request.
 */

import type { Fetch } from "../http/fetch_sender.ts";
import type { ManualClock } from "./clock.ts";

/**
 * - `pass`: no fault.
 * - `drop_before_send`: the connection fails; the request was certainly not served.
 * - `reset`: the connection breaks while sending; the request is not served, but the client cannot know.
 * - `drop_after_send`: served, and the response is lost.
 * - `duplicate`: served twice; the client gets the second response.
 * - `hang_before`: not served. `hang_after`: served. In both cases the response never arrives.
 * - `unavailable`, `rate_limited`: not served; 503 or 429 with `Retry-After: 1`.
 * - `delaySeconds`: served that much later, after the test has moved the clock.
 * - `takesSeconds`: served; the fault itself moves the clock by this much before the response arrives.
 * - `status`: not served; an intermediary sends this response.
 */
export type Fault =
  | "pass"
  | "drop_before_send"
  | "reset"
  | "drop_after_send"
  | "duplicate"
  | "hang_before"
  | "hang_after"
  | "unavailable"
  | "rate_limited"
  | { readonly delaySeconds: number }
  | { readonly takesSeconds: number }
  | { readonly status: number; readonly body?: string; readonly headers?: Record<string, string> };

/** One request as the client sent it. */
export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly headers: Headers;
  readonly token: string | null;
  readonly requestId: string | null;
}

/** A faulty transport. `script` and `otherwise` may be changed at any time. */
export interface FaultyTransport {
  readonly fetch: Fetch;
  readonly seen: Seen[];
  script: Fault[];
  otherwise: Fault;
}

/** Wraps `inner` with faults, on the client's clock. */
export function faultyFetch(inner: Fetch, clock: ManualClock, script: Iterable<Fault> = []): FaultyTransport {
  const transport: FaultyTransport = {
    seen: [],
    script: [...script],
    otherwise: "pass",
    fetch: (url, init) => {
      transport.seen.push(recordOf(url, init));
      return applyFault(
        transport.script.shift() ?? transport.otherwise,
        () => serveRequest(inner, clock, url, init),
        clock,
        init,
      );
    },
  };
  return transport;
}

async function applyFault(
  fault: Fault,
  serve: () => Promise<Response>,
  clock: ManualClock,
  init: RequestInit,
): Promise<Response> {
  if (typeof fault === "object") return applyTimedFault(fault, serve, clock, init);
  switch (fault) {
    case "drop_before_send":
      throw networkError("ECONNREFUSED");
    case "reset":
      throw networkError("ECONNRESET");
    case "unavailable":
      return scriptedResponse(503, "lock_service_unavailable");
    case "rate_limited":
      return scriptedResponse(429, "lock_rate_limited");
    case "hang_before":
      return hang(init);
    case "hang_after":
      await serve();
      return hang(init);
    case "drop_after_send":
      await serve();
      throw networkError("ECONNRESET");
    case "duplicate":
      await serve();
      return serve();
    default:
      return serve();
  }
}

async function applyTimedFault(
  fault: Extract<Fault, object>,
  serve: () => Promise<Response>,
  clock: ManualClock,
  init: RequestInit,
): Promise<Response> {
  if ("status" in fault) return new Response(fault.body ?? null, fault);
  if ("delaySeconds" in fault) {
    let cancel = (): void => {};
    const due = new Promise<void>((wake) => {
      cancel = clock.at(clock.now() + fault.delaySeconds, wake);
    });
    await Promise.race([due, hang(init)]).finally(cancel);
    return serve();
  }
  const response = await serve();
  clock.jump(fault.takesSeconds);
  return response;
}

/** Completes the response before the clock moves on. A long-lived request depends on the clock, so it is passed through. */
function serveRequest(inner: Fetch, clock: ManualClock, url: string, init: RequestInit): Promise<Response> {
  if (isLongLived(init)) return inner(url, init);
  const exchange = async (): Promise<Response> => {
    const response = await inner(url, init);
    const { status, headers } = response;
    const text = await response.text();
    return new Response(text === "" ? null : text, { status, headers });
  };
  return clock.track(exchange());
}

/** Whether the request is a wait or an event stream. */
function isLongLived(init: RequestInit): boolean {
  if (new Headers(init.headers).get("Accept") === "text/event-stream") return true;
  return typeof init.body === "string" && "wait_seconds" in JSON.parse(init.body);
}

/** Rejects when the client aborts the request. */
function hang(init: RequestInit): Promise<never> {
  return new Promise((_, reject) => {
    const { signal } = init;
    if (signal?.aborted) reject(signal.reason);
    signal?.addEventListener("abort", () => reject(signal.reason));
  });
}

/** The error of Node's `fetch` for a failed connection. */
function networkError(code: string): TypeError {
  return new TypeError("fetch failed", { cause: Object.assign(new Error(`scripted: ${code}`), { code }) });
}

function scriptedResponse(status: number, code: string): Response {
  return Response.json({ error: "scripted response", code }, { status, headers: { "Retry-After": "1" } });
}

function recordOf(url: string, init: RequestInit): Seen {
  const headers = new Headers(init.headers);
  return {
    method: init.method ?? "GET",
    path: new URL(url).pathname,
    headers,
    token: headers.get("X-Volcano-Lock-Token"),
    requestId: headers.get("X-Volcano-Request-Id"),
  };
}
