/** The two senders over real sockets: `fetch` and `node:http` succeed and fail alike, with the same errors. */

import { once } from "node:events";
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { setTimeout } from "node:timers/promises";
import { afterEach, describe, expect, it, vi } from "vitest";
import { Client, type ClientOptions, TransportError } from "../../src/index.ts";
import { defined, KEY, SERVICE_KEY, TOKEN, TTL } from "../harness.ts";

const SENDERS: ReadonlyArray<[string, ClientOptions]> = [
  ["node:http", {}],
  ["fetch", { fetch: (url, init) => fetch(url, init) }],
];
const GRANT = JSON.stringify({ expires_at: "2026-07-20T14:00:10Z", fencing_token: 1 });
const VIEW = JSON.stringify({
  ...{ key: KEY, held: false, holder: null, acquired_at: null, renewed_at: null, expires_at: null },
  ...{ ttl_seconds: null, fencing_token: null, waiters: 0 },
});

function thrower(): never {
  throw new Error("not to be read");
}

describe.each(SENDERS)("requests over %s", (_, options) => {
  const servers: Server[] = [];
  /** The connections that got a request. `fetch` may open others. */
  const sockets = new Set<Socket>();

  const connections = new Set<Socket>();

  async function listening(server: Server): Promise<Client> {
    servers.push(server.listen(0, "127.0.0.1"));
    server.on("connection", (socket) => {
      connections.add(socket);
      socket.once("data", () => sockets.add(socket));
      socket.on("error", () => {});
    });
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    return new Client({ apiUrl: `http://127.0.0.1:${port}/base/`, serviceKey: SERVICE_KEY, ...options });
  }

  /** A client of a server that responds to each request with `bytes`, and then closes the connection if `ends`. */
  const rawServer = (bytes: string, ends = true): Promise<Client> =>
    listening(
      createServer((socket) => {
        socket.once("data", () => (ends ? socket.end(bytes) : socket.write(bytes)));
      }),
    );

  const httpServer = (serve: (request: IncomingMessage, response: ServerResponse) => void): Promise<Client> =>
    listening(createHttpServer(serve));

  afterEach(() => {
    for (const socket of connections) socket.destroy();
    for (const server of servers.splice(0)) server.close();
    connections.clear();
    sockets.clear();
  });

  it("send method, path, header fields and body, and read the response", async () => {
    const seen: unknown[] = [];
    const client = await httpServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      const { authorization, "content-type": type, "x-volcano-lock-token": token } = request.headers;
      seen.push([request.method, request.url, authorization, type, token, body]);
      response.writeHead(201).end(GRANT);
    });
    const { lease } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    expect(lease?.fencingToken).toBe(1);
    const body = JSON.stringify({ ttl_seconds: TTL });
    expect(seen).toEqual([
      ["POST", `/base/locks/${KEY}/lease`, `Bearer ${SERVICE_KEY}`, "application/json", TOKEN, body],
    ]);
  });

  it("keep connections for the next requests", async () => {
    const client = await httpServer((_request, response) => void response.end('{"held": false}'));
    for (let count = 0; count < 9; count += 1) expect((await client.locks.get(KEY)).error).toBeNull();
    expect(sockets.size).toBeLessThan(3);
  });

  it.each([
    ["no bytes", ""],
    ["no HTTP", "SSH-2.0-OpenSSH_9.2\r\n"],
    ["an incomplete head", "HTTP/1.1 200 OK\r\nContent-Len"],
    ["an incomplete body", 'HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"held": false}'],
    ["a missing last chunk", 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{"held": false}\r\n'],
    ["a chunk size that is no number", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"],
    ["two different lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"],
    ["an endless head", `HTTP/1.1 200 OK\r\nX-Long: ${"x".repeat(40_000)}\r\n\r\n{}`],
    ["another protocol", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"],
  ])("a broken response is a TransportError: %s", async (_name, bytes) => {
    const client = await rawServer(bytes);
    const { error } = await client.locks.get(KEY);
    expect(error).toBeInstanceOf(TransportError);
    expect(error).toMatchObject({ requestSent: true, message: expect.stringMatching(`^GET /locks/${KEY}: `) });
    expect(error?.message).not.toContain("no response within");
  });

  it.each([
    ["no bytes", ""],
    ["an incomplete head", "HTTP/1.1 200 OK\r\nContent-Len"],
    ["an incomplete body", "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"],
  ])("the time limit covers the whole response: %s", async (_name, bytes) => {
    const client = await rawServer(bytes, false);
    const { locks } = new Client({
      ...(client.toJSON() as ClientOptions),
      serviceKey: "sk",
      timeoutSeconds: 0.1,
      ...options,
    });
    expect((await locks.get(KEY)).error?.message).toContain("no response within 0.1 seconds");
    await allClosed();
  });

  const allClosed = (): Promise<unknown> =>
    vi.waitUntil(() => [...sockets].every((socket) => socket.readableEnded || socket.destroyed), { timeout: 5_000 });

  it("an abort closes the connection", async () => {
    const client = await rawServer("", false);
    const caller = new AbortController();
    const pending = client.locks.get(KEY, { signal: caller.signal });
    await vi.waitUntil(() => sockets.size > 0);
    caller.abort(new Error("enough"));
    const { error } = await pending;
    expect(error?.cause).toBe(caller.signal.reason);
    await allClosed();
  });

  it("a response that is too long closes its connection", async () => {
    const client = await httpServer((_request, response) => void response.end("x".repeat(10_000_000)));
    expect((await client.locks.get(KEY)).error?.message).toMatch(/longer than 65536 bytes/);
    await allClosed();
  });

  it("redirects are not followed", async () => {
    const urls: unknown[] = [];
    const client = await httpServer((request, response) => {
      urls.push(request.url);
      response.writeHead(307, { Location: "/elsewhere" }).end();
    });
    expect((await client.locks.get(KEY)).error).toMatchObject({ name: "ServerError", status: 307 });
    expect(urls).toEqual([`/base/locks/${KEY}`]);
  });

  it("SDK-9 case 83: doubled header fields count by their first value, and another request's id is refused", async () => {
    let ids: (own: string) => string[] = (own) => [own, own];
    const client = await httpServer((request, response) => {
      const own = String(request.headers["x-volcano-request-id"]);
      response.setHeader("X-Volcano-Request-Id", ids(own.toUpperCase()));
      response.writeHead(429, { "Retry-After": "7" }).end();
    });
    expect((await client.locks.get(KEY)).error).toMatchObject({ name: "RateLimitedError", retryAfter: 7 });
    ids = (own) => [TOKEN, own];
    expect((await client.locks.get(KEY)).error).toMatchObject({
      name: "TransportError",
      message: expect.stringContaining("belongs to another request"),
    });
  });

  it("SDK-9: a stream starts whatever the case of its media type, and ends with the loop", async () => {
    const client = await httpServer((request, response) => {
      if (!request.url?.endsWith("/events")) return void response.end(VIEW);
      response.writeHead(200, { "Content-Type": "Text/Event-Stream; charset=UTF-8" });
      response.write("id: 1\n\n");
    });
    for await (const { held } of client.locks.watch(KEY)) {
      expect(held).toBe(false);
      break;
    }
    await vi.waitUntil(() => [...sockets].some((socket) => socket.destroyed));
  });

  it("SDK-8: errors show neither token nor service key", async () => {
    const client = await rawServer(`HTTP/1.1 200 OK\r\n${SERVICE_KEY} ${TOKEN}\r\n\r\n`);
    const { error } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    expect(error).toBeInstanceOf(TransportError);
    expect(String(error)).not.toContain(SERVICE_KEY);
    expect(String(error)).not.toContain(TOKEN);
  });

  it("SDK-9: a refused connection names host, port and what to check", async () => {
    const client = await rawServer("");
    const { apiUrl } = client.toJSON();
    const server = defined(servers.pop());
    server.close();
    await once(server, "close");
    const { error } = await client.locks.get(KEY);
    expect(error).toMatchObject({ name: "TransportError", requestSent: false });
    expect(error?.message).toBe(
      `GET /locks/${KEY}: no connection to ${new URL(apiUrl).host}: the connection was refused (ECONNREFUSED); ` +
        "check that the lock service runs there, and the apiUrl of the client (VOLCANO_API_URL)",
    );
  });
});

describe("node:http", () => {
  it.each(["end", "reset"])(
    "case 32: a retry takes none of the kept connections, which ended together: %s",
    async (how) => {
      const sockets = new Set<Socket>();
      const server = createHttpServer(async (request, response) => {
        await setTimeout(20);
        response.writeHead(request.method === "POST" ? 201 : 200).end(GRANT);
      }).on("connection", (socket) => sockets.add(socket));
      await once(server.listen(0, "127.0.0.1"), "listening");
      const apiUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      const { locks } = new Client({ apiUrl, serviceKey: SERVICE_KEY });
      await Promise.all(Array.from({ length: 4 }, () => locks.acquire(KEY, { ttl: TTL })));
      expect(sockets.size).toBe(4);
      // The client has not yet seen the ends when it sends the next request.
      for (const socket of sockets) how === "reset" ? socket.resetAndDestroy() : socket.destroy();
      expect(await locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true, error: null });
      server.close();
      server.closeAllConnections();
    },
  );
});

describe("a given fetch", () => {
  it.each([
    ["an object without a prototype", Object.create(null)],
    ["a value that has no text", { toString: 1 }],
    ["an error with a getter that throws", Object.defineProperty(new Error("x"), "cause", { get: thrower })],
    ["an error whose message is a symbol", Object.assign(new Error("x"), { message: Symbol("m") })],
    ["an object that refuses to be read", new Proxy({}, { get: thrower })],
  ])("SDK-23: may reject with any value: %s", async (_name, reason) => {
    const fetch = (): Promise<Response> => Promise.reject(reason);
    const { error } = await new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch }).locks.get(KEY);
    expect(error).toBeInstanceOf(TransportError);
  });

  it.each([
    ["an error without a message is shown by its code", "", "ETIMEDOUT"],
    [
      "a message of several lines is shown in one",
      "wrong version number:\nrecord.c\n",
      "wrong version number: record.c",
    ],
  ])("%s", async (_name, message, shown) => {
    const reason = Object.assign(new AggregateError([], message), { code: "ETIMEDOUT" });
    const fetch = (): Promise<Response> => Promise.reject(reason);
    const { error } = await new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch }).locks.get(KEY);
    expect(error?.message).toBe(`GET /locks/${KEY}: AggregateError: ${shown}`);
  });

  it("case 47: is called without a receiver", async () => {
    const receivers: unknown[] = [];
    const fetch = function (this: unknown): Promise<Response> {
      receivers.push(this);
      return Promise.resolve(Response.json({ held: false }));
    };
    await new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch }).locks.get(KEY);
    expect(receivers).toEqual([undefined]);
  });

  it("the default in Node does not see a patched global fetch", async () => {
    const patched = vi.spyOn(globalThis, "fetch");
    const { locks } = new Client({ apiUrl: "http://127.0.0.1:1", serviceKey: "sk" });
    expect((await locks.get(KEY)).error).toBeInstanceOf(TransportError);
    expect(patched).not.toHaveBeenCalled();
    patched.mockRestore();
  });
});
