/**
 * The interface of a sender, which sends HTTP requests and returns responses. `fetch` and `node:http` implement it.
 */

/** The code of a sender's error if the proxy refused the tunnel: the request was not sent. */
export const TUNNEL_REFUSED = "TUNNEL_REFUSED";

/** One HTTP request below the API URL. */
export interface OutgoingRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | undefined;
}

/** A response whose body has not been read yet. `header` ignores case. */
export interface IncomingResponse {
  readonly status: number;
  header(name: string): string | null;
  /** The next bytes of the body; null at its end. Rejects if the response is broken or was aborted. */
  read(): Promise<Uint8Array | null>;
}

/** A request in flight. */
export interface Exchange {
  readonly response: Promise<IncomingResponse>;
  /** Ends the exchange, and closes its connection unless the response is complete. */
  abort(): void;
}

/** Sends the requests of one client. */
export interface Sender {
  /** The proxy that the requests go through, without its password, and the variable that names it. */
  readonly proxy?: { readonly origin: string; readonly variable: string } | null;
  send(request: OutgoingRequest): Exchange;
}
