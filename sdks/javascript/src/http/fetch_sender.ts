/**
 * Sends requests with a given `fetch` or the runtime's own.
 *
 * It does not follow redirects: the service sends none, and the service key must go to the configured address only.
 */

import type { Exchange, IncomingResponse, OutgoingRequest, Sender } from "./sender.ts";

/** The part of `fetch` that is used. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** Calls `fetch` without a receiver, since some runtimes refuse another `this` (case 47). */
export function createFetchSender(fetch: Fetch, apiUrl: string): Sender {
  return { send: (request) => startExchange(fetch, apiUrl, request) };
}

/** Looks up the runtime's `fetch` at each request, since programs replace it to trace or to record. */
export function createRuntimeFetchSender(apiUrl: string): Sender {
  if (typeof globalThis.fetch !== "function") throw new TypeError("this runtime has no fetch: pass one");
  return createFetchSender((url, init) => globalThis.fetch(url, init), apiUrl);
}

function startExchange(fetch: Fetch, apiUrl: string, { method, path, headers, body }: OutgoingRequest): Exchange {
  const aborter = new AbortController();
  let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  const start = async (): Promise<IncomingResponse> => {
    const { signal } = aborter;
    const init = { method, headers, redirect: "manual", signal, ...(body === undefined ? {} : { body }) } as const;
    const response = await fetch(apiUrl + path, init);
    reader = response.body?.getReader();
    if (signal.aborted) reader?.cancel().catch(() => {});
    return {
      status: response.status,
      header: (name) => response.headers.get(name),
      read: async () => (await reader?.read())?.value ?? null,
    };
  };
  return {
    response: start(),
    abort: () => {
      aborter.abort();
      reader?.cancel().catch(() => {});
    },
  };
}
