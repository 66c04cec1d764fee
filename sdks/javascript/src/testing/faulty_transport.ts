/**
 * A network that fails by script, around any `fetch`: a fake's, or the runtime's own.
 *
 * Each request takes the next fault of the script; when that is used up, `otherwise` applies. What was sent is kept
 * in `seen`, so that a test can tell a retry with the same ids from a new request.
 */

import type { Fetch } from "../http/transport.ts";
import type { ManualClock } from "./clock.ts";

/**
 * - `pass`: let it through.
 * - `drop_before_send`: no connection; the request certainly was not served.
 * - `reset`: the connection breaks as the request goes out; not served, but the client cannot know (case 32).
 * - `drop_after_send`: served, and the answer is lost (case 13).
 * - `duplicate`: served twice; the second answer is the one that comes back.
 * - `hang_before`, `hang_after`: not served, or served; the answer never comes.
 * - `unavailable`, `rate_limited`: not served; 503 or 429 with `Retry-After: 1`.
 * - `delaySeconds`: served that much later, when somebody has moved the clock.
 * - `takesSeconds`: served, and the answer takes so long: moves the clock itself.
 * - `status`: not served; somebody in between answers this.
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

/** One request as it left the client. */
export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly headers: Headers;
  readonly token: string | null;
  readonly requestId: string | null;
}

/** A failing network. `script` and `otherwise` may be changed at any time. */
export interface FlakyNetwork {
  readonly fetch: Fetch;
  readonly seen: Seen[];
  script: Fault[];
  otherwise: Fault;
}

/** `inner` with faults, on the clock that its client has. */
export function flakyFetch(inner: Fetch, clock: ManualClock, script: Iterable<Fault> = []): FlakyNetwork {
  const network: FlakyNetwork = {
    seen: [],
    script: [...script],
    otherwise: "pass",
    fetch: (url, init) => {
      network.seen.push(seenOf(url, init));
      return faulty(network.script.shift() ?? network.otherwise, () => served(inner, clock, url, init), clock, init);
    },
  };
  return network;
}

async function faulty(
  fault: Fault,
  serve: () => Promise<Response>,
  clock: ManualClock,
  init: RequestInit,
): Promise<Response> {
  if (typeof fault === "object") return timed(fault, serve, clock, init);
  switch (fault) {
    case "drop_before_send":
      throw failed("ECONNREFUSED");
    case "reset":
      throw failed("ECONNRESET");
    case "unavailable":
      return scripted(503, "lock_service_unavailable");
    case "rate_limited":
      return scripted(429, "lock_rate_limited");
    case "hang_before":
      return never(init);
    case "hang_after":
      await serve();
      return never(init);
    case "drop_after_send":
      await serve();
      throw failed("ECONNRESET");
    case "duplicate":
      await serve();
      return serve();
    default:
      return serve();
  }
}

async function timed(
  fault: Extract<Fault, object>,
  serve: () => Promise<Response>,
  clock: ManualClock,
  init: RequestInit,
): Promise<Response> {
  if ("status" in fault) return new Response(fault.body ?? null, fault);
  if ("delaySeconds" in fault) {
    let forget = (): void => {};
    const due = new Promise<void>((wake) => {
      forget = clock.at(clock.now() + fault.delaySeconds, wake);
    });
    await Promise.race([due, never(init)]).finally(forget);
    return serve();
  }
  const response = await serve();
  clock.jump(fault.takesSeconds);
  return response;
}

/** The whole answer, which has come before the clock may move on; one that waits for the clock itself as it comes. */
function served(inner: Fetch, clock: ManualClock, url: string, init: RequestInit): Promise<Response> {
  if (waits(init)) return inner(url, init);
  const whole = async (): Promise<Response> => {
    const response = await inner(url, init);
    const { status, headers } = response;
    const text = await response.text();
    return new Response(text === "" ? null : text, { status, headers });
  };
  return clock.track(whole());
}

/** Whether it is a wait in a lock's line, or a stream of events. */
function waits(init: RequestInit): boolean {
  if (new Headers(init.headers).get("Accept") === "text/event-stream") return true;
  return typeof init.body === "string" && "wait_seconds" in JSON.parse(init.body);
}

/** Until the client breaks off. */
function never(init: RequestInit): Promise<never> {
  return new Promise((_, reject) => {
    const { signal } = init;
    if (signal?.aborted) reject(signal.reason);
    signal?.addEventListener("abort", () => reject(signal.reason));
  });
}

/** What Node's `fetch` fails with. */
function failed(code: string): TypeError {
  return new TypeError("fetch failed", { cause: Object.assign(new Error(`scripted: ${code}`), { code }) });
}

function scripted(status: number, code: string): Response {
  return Response.json({ error: "this answer was scripted", code }, { status, headers: { "Retry-After": "1" } });
}

function seenOf(url: string, init: RequestInit): Seen {
  const headers = new Headers(init.headers);
  return {
    method: init.method ?? "GET",
    path: new URL(url).pathname,
    headers,
    token: headers.get("X-Volcano-Lock-Token"),
    requestId: headers.get("X-Volcano-Request-Id"),
  };
}
