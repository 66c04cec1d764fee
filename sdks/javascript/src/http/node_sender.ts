/**
 * Sends requests with `node:http` and `node:https`, which take less time than Node's `fetch`.
 *
 * Idle connections are kept for a few seconds, less than servers and proxies keep them, and keep no process alive.
 * Requests go through the proxy of the usual environment variables. Redirects are not followed.
 */

import {
  Agent,
  type ClientRequest,
  type IncomingMessage,
  type RequestOptions,
  request as requestHttp,
} from "node:http";
import { request as requestHttps, Agent as TlsAgent } from "node:https";
import type { Duplex } from "node:stream";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { type Environment, findProxy, type HttpProxy, hostOf } from "./proxy.ts";
import { type Exchange, type IncomingResponse, type OutgoingRequest, type Sender, TUNNEL_REFUSED } from "./sender.ts";

const AGENT_OPTIONS = { keepAlive: true, timeout: 4_000 } as const;
const HTTP_AGENT = new Agent(AGENT_OPTIONS);
const HTTPS_AGENT = new TlsAgent(AGENT_OPTIONS);

/** A sender to `apiUrl`. Throws a `RangeError` if the variable that names the proxy is invalid. */
export function createNodeSender(apiUrl: string, environment: Environment = process.env): Sender {
  const target = new URL(apiUrl);
  const secure = target.protocol === "https:";
  const proxy = findProxy(target, environment);
  const prefix = target.pathname.replace(/\/+$/, "");
  if (proxy === null) {
    return { send: (request) => startExchange(secure, connectionOptions(target), prefix, request) };
  }
  const shown = { origin: proxy.url.origin, variable: proxy.variable };
  if (secure) {
    const options = { ...connectionOptions(target), agent: new TunnelAgent(proxy, target) };
    return { proxy: shown, send: (request) => startExchange(true, options, prefix, request) };
  }
  const options = connectionOptions(proxy.url);
  const headers = { Host: target.host, ...proxy.headers };
  return {
    proxy: shown,
    send: (request) =>
      startExchange(proxy.url.protocol === "https:", options, target.origin + prefix, {
        ...request,
        headers: { ...request.headers, ...headers },
      }),
  };
}

function connectionOptions(url: URL): RequestOptions {
  const secure = url.protocol === "https:";
  return { host: hostOf(url), port: url.port || (secure ? 443 : 80), agent: secure ? HTTPS_AGENT : HTTP_AGENT };
}

function startExchange(secure: boolean, options: RequestOptions, prefix: string, outgoing: OutgoingRequest): Exchange {
  const { method, path, headers, body } = outgoing;
  const tunnel: Tunnel = {};
  const target: TunnelOptions = { ...options, tunnel, method, path: prefix + path, headers };
  const request = (secure ? requestHttps : requestHttp)(target);
  const response = new Promise<IncomingResponse>((resolve, reject) => {
    request.on("response", (message) => resolve(receive(message)));
    request.on("error", (error) => {
      if (request.reusedSocket) closeIdleConnections(options.agent as Agent);
      reject(error);
    });
    request.on("upgrade", (_message, socket) => {
      socket.destroy();
      reject(new Error("the response switches the protocol"));
    });
  });
  request.end(body);
  const abort = (): void => {
    tunnel.connect?.destroy();
    request.destroy();
  };
  return { response, abort };
}

/** If one kept connection is dead, others may be too: a retry must not take one of them (case 32). */
function closeIdleConnections(agent: Agent): void {
  for (const socket of Object.values(agent.freeSockets).flat()) socket?.destroy();
}

function receive(message: IncomingMessage): IncomingResponse {
  const chunks = message[Symbol.asyncIterator]() as AsyncIterator<Uint8Array, undefined>;
  return {
    status: message.statusCode ?? 0,
    header: (name) => {
      const value = message.headers[name.toLowerCase()];
      return value === undefined ? null : String(value);
    },
    read: async () => (await chunks.next()).value ?? null,
  };
}

/** The request for a tunnel, which ends with the request that needs the tunnel. */
interface Tunnel {
  connect?: ClientRequest;
}
type TunnelOptions = RequestOptions & { tunnel?: Tunnel };
type OnConnection = (error: Error | null, socket: Duplex) => void;
const NO_SOCKET = undefined as unknown as Duplex;

/** Connects to an `https` service through a tunnel of the proxy. */
class TunnelAgent extends TlsAgent {
  readonly #proxy: HttpProxy;
  readonly #authority: string;

  constructor(proxy: HttpProxy, target: URL) {
    super(AGENT_OPTIONS);
    this.#proxy = proxy;
    this.#authority = `${target.hostname}:${target.port || 443}`;
  }

  /** Calls back, and returns no connection, since the tunnel takes time. */
  override createConnection(options: TunnelOptions, onConnection: OnConnection = () => {}): undefined {
    const { url, headers } = this.#proxy;
    const connect = (url.protocol === "https:" ? requestHttps : requestHttp)({
      ...connectionOptions(url),
      agent: false,
      method: "CONNECT",
      path: this.#authority,
      headers: { Host: this.#authority, ...headers },
    });
    if (options.tunnel !== undefined) options.tunnel.connect = connect;
    connect.once("error", (error) => onConnection(error, NO_SOCKET));
    connect.once("connect", ({ statusCode }, socket) => {
      if (statusCode === 200) return onConnection(null, connectTls({ ...(options as ConnectionOptions), socket }));
      socket.destroy();
      const message = `the proxy refused the tunnel with HTTP ${statusCode}`;
      onConnection(Object.assign(new Error(message), { code: TUNNEL_REFUSED }), NO_SOCKET);
    });
    connect.end();
  }
}
