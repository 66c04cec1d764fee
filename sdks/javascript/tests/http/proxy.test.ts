/** Case 56: requests go through the proxy of the environment, except to loopback and NO_PROXY, and errors name it. */

import { execFile, execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { type AddressInfo, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { findProxy } from "../../src/http/proxy.ts";
import { Client } from "../../src/index.ts";
import { KEY } from "../harness.ts";

const PACKAGE = fileURLToPath(new URL("../../dist/node/index.mjs", import.meta.url));
const PASSWORD = "pass word";
const CREDENTIALS = `Basic ${Buffer.from(`me:${PASSWORD}`).toString("base64")}`;

describe("case 56: which proxy", () => {
  const proxy = { HTTP_PROXY: "http://proxy:1", HTTPS_PROXY: "http://secure:2" };

  it.each([
    ["http://locks.test", proxy, "http://proxy:1"],
    ["https://locks.test", proxy, "http://secure:2"],
    ["https://locks.test", { HTTP_PROXY: "http://proxy:1" }, undefined],
    ["https://locks.test", { ALL_PROXY: "proxy:1" }, "http://proxy:1"],
    ["http://locks.test", { http_proxy: "http://lower:3", HTTP_PROXY: "http://upper:4" }, "http://lower:3"],
    ["http://locks.test", { http_proxy: "", HTTP_PROXY: "" }, undefined],
    ["http://locks.test", { HTTP_PROXY: "http://proxy:1", REQUEST_METHOD: "GET" }, undefined],
    ["http://127.0.0.1:7420", proxy, undefined],
    ["http://127.9.9.9", proxy, undefined],
    ["http://[::1]:7420", proxy, undefined],
    ["http://localhost:7420", proxy, undefined],
    ["http://api.localhost", proxy, undefined],
    ["http://locks.test", { ...proxy, NO_PROXY: "*" }, undefined],
    ["http://locks.test", { ...proxy, NO_PROXY: "other, LOCKS.test" }, undefined],
    ["http://a.locks.test", { ...proxy, no_proxy: ".locks.test" }, undefined],
    ["http://a.locks.test", { ...proxy, no_proxy: "*.locks.test" }, undefined],
    ["http://a.locks.test", { ...proxy, no_proxy: "locks.test:80" }, undefined],
    ["http://a.locks.test:81", { ...proxy, no_proxy: "locks.test:80" }, "http://proxy:1"],
    ["http://mylocks.test", { ...proxy, no_proxy: "locks.test" }, "http://proxy:1"],
    ["http://10.1.2.3", { ...proxy, no_proxy: "10.0.0.0/8" }, undefined],
    ["http://11.1.2.3", { ...proxy, no_proxy: "10.0.0.0/8,bad/99,10.0.0.0/99" }, "http://proxy:1"],
    ["http://[fd00::5]", { ...proxy, no_proxy: "fd00::/8" }, undefined],
    ["http://[fd00::5]:80", { ...proxy, no_proxy: "[fd00::5]:80" }, undefined],
  ])("%s with %j: %s", (url, environment, expected) => {
    expect(findProxy(new URL(url), environment)?.url.origin).toBe(expected);
  });

  it.each(["socks5://me:secret@proxy:1", "http://", "http://%zz:secret@proxy:1"])("%s is refused", (text) => {
    const find = (): unknown => findProxy(new URL("http://locks.test"), { ALL_PROXY: text });
    expect(find).toThrow("ALL_PROXY must be the URL of an http or https proxy");
    expect(find).not.toThrow("secret");
  });
});

describe("case 56: requests through a proxy", () => {
  const servers: Server[] = [];
  let seen: unknown[] = [];
  let folder: string;

  async function listening(server: Server): Promise<number> {
    servers.push(server.listen(0, "127.0.0.1"));
    await once(server, "listening");
    return (server.address() as AddressInfo).port;
  }

  /** A proxy that answers plain requests itself, and tunnels to `tunnelPort` if that is given. */
  function startProxy(tunnelPort?: number): Promise<number> {
    const proxy = createServer((request, response) => {
      seen.push([request.method, request.url, request.headers.host, request.headers["proxy-authorization"]]);
      response.writeHead(502).end("<html>");
    });
    proxy.on("connect", (request, socket) => {
      seen.push([request.method, request.url, request.headers["proxy-authorization"]]);
      if (tunnelPort === undefined) return void socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
      const target = connect(tunnelPort, "127.0.0.1", () => {
        socket.write("HTTP/1.1 200 OK\r\n\r\n");
        socket.pipe(target).pipe(socket);
      });
      for (const one of [socket, target]) one.on("error", () => {});
    });
    return listening(proxy);
  }

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "volcano-locks-"));
    const subject = ["-subj", "/CN=locks.test", "-addext", "subjectAltName=DNS:locks.test"];
    const files = ["-keyout", join(folder, "key.pem"), "-out", join(folder, "cert.pem")];
    execFileSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-nodes", ...subject, ...files], { stdio: "pipe" });
  });

  afterEach(() => {
    vi.unstubAllEnvs();
    seen = [];
    for (const server of servers.splice(0)) {
      server.close();
      server.closeAllConnections();
    }
  });

  afterAll(() => rmSync(folder, { recursive: true }));

  it("an http service is requested from the proxy, whose responses name it", async () => {
    const port = await startProxy();
    vi.stubEnv("HTTP_PROXY", `http://me:${encodeURIComponent(PASSWORD)}@127.0.0.1:${port}`);
    const { error } = await new Client({ apiUrl: "http://locks.test/base", serviceKey: "sk" }).locks.get(KEY);
    expect(seen).toEqual([["GET", `http://locks.test/base/locks/${KEY}`, "locks.test", CREDENTIALS]]);
    expect(error?.message).toBe(
      `HTTP 502 without an error message through the proxy http://127.0.0.1:${port} of HTTP_PROXY`,
    );
  });

  it("a dead proxy is named, without its password", async () => {
    const port = await startProxy();
    servers.pop()?.close();
    vi.stubEnv("HTTPS_PROXY", `http://me:${encodeURIComponent(PASSWORD)}@127.0.0.1:${port}`);
    const { error } = await new Client({ apiUrl: "https://locks.test", serviceKey: "sk" }).locks.get(KEY);
    expect(error).toMatchObject({ name: "TransportError", requestSent: false });
    expect(error?.message).toBe(
      `GET /locks/${KEY} through the proxy http://127.0.0.1:${port} of HTTPS_PROXY: ` +
        `no connection to 127.0.0.1:${port}: the connection was refused (ECONNREFUSED); ` +
        "check that the proxy runs there, and HTTPS_PROXY and NO_PROXY",
    );
  });

  it("a refused tunnel is an error that names the proxy: nothing was sent", async () => {
    vi.stubEnv("HTTPS_PROXY", `http://127.0.0.1:${await startProxy()}`);
    const { error } = await new Client({ apiUrl: "https://locks.test", serviceKey: "sk" }).locks.get(KEY);
    expect(error).toMatchObject({ name: "TransportError", requestSent: false });
    expect(error?.message).toContain("the proxy refused the tunnel with HTTP 403");
  });

  it("a proxy that does not answer is an error after the time limit, and its connections are closed", async () => {
    const open = new Set<unknown>();
    const silent = createServer().on("connect", (_, socket) => {
      open.add(socket.on("error", () => {}).on("end", () => open.delete(socket)));
      socket.resume();
    });
    vi.stubEnv("HTTPS_PROXY", `http://127.0.0.1:${await listening(silent)}`);
    const { locks } = new Client({ apiUrl: "https://locks.test", serviceKey: "sk", timeoutSeconds: 0.1 });
    expect((await locks.get(KEY)).error?.message).toMatch(/through the proxy .*: no response within 0.1 seconds/);
    await vi.waitUntil(() => open.size === 0);
  });

  it("an https service is reached through a tunnel, whose connection is kept", async () => {
    const secrets = { key: readFileSync(join(folder, "key.pem")), cert: readFileSync(join(folder, "cert.pem")) };
    const service = createTlsServer(secrets, (_, response) => void response.end('{"held": false}'));
    const port = await startProxy(await listening(service as unknown as Server));
    const program = join(folder, "program.mjs");
    writeFileSync(
      program,
      `import { Client } from ${JSON.stringify(PACKAGE)};
      const { locks } = new Client({ apiUrl: "https://locks.test", serviceKey: "sk" });
      for (let count = 0; count < 3; count += 1) {
        const { state, error } = await locks.get("k");
        console.log(state?.held, error?.message);
      }`,
    );
    const env = {
      ...process.env,
      NODE_EXTRA_CA_CERTS: join(folder, "cert.pem"),
      HTTPS_PROXY: `http://me:${encodeURIComponent(PASSWORD)}@127.0.0.1:${port}`,
    };
    const { stdout } = await promisify(execFile)(process.execPath, [program], { env });
    expect(stdout).toBe("false undefined\n".repeat(3));
    expect(seen).toEqual([["CONNECT", "locks.test:443", CREDENTIALS]]);
  });
});
