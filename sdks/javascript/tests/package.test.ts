/** Tests the packed package as its users install it. `npm test` builds it first. */

import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createContext, Script } from "node:vm";
import { build } from "vite";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Client, ClientOptions } from "../src/index.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const SLOW_MS = 60_000;
/** The current TypeScript and the oldest that the README names. */
const COMPILERS = ["node_modules/typescript/bin/tsc", "node_modules/typescript-5.2/bin/tsc"] as const;

/** Checks our declarations, but not those of the compiler itself. */
const QUICK = "--skipDefaultLibCheck";

const PROGRAM = `
const client = new FakeClient();
client.locks.withLock("k", { ttl: 30 }, ({ lease, signal }) => [lease.fencingToken, signal.aborted]).then((result) => {
  console.log(JSON.stringify([result, VERSION, new LockHeldError("x") instanceof VolcanoError, typeof Client]));
});
`;
const NAMES = "{ Client, LockHeldError, VERSION, VolcanoError }";
const OUTPUT = '[{"acquired":true,"data":[1767225600000,false],"error":null},"0.1.0",true,"function"]';

const TYPED = `
import {
  Client,
  type ExclusiveOptions,
  type Leadership,
  Lease,
  type LeaseRecord,
  type LockGuard,
  LockHeldError,
  LockOwnershipLostError,
  type Logger,
  type ThrowingLocks,
  type UncertainLease,
  type UncertainLeaseRecord,
  VolcanoError,
} from "volcano-locks";
import { FakeClient } from "volcano-locks/testing";

export async function use(client: Client = new FakeClient()): Promise<number> {
  const { acquired, lease, error } = await client.locks.acquire("k", { ttl: 30 });
  const reason: VolcanoError | null = error;
  if (!acquired) throw reason;
  const kept: Lease = lease;
  await using _scope = kept;
  const result = await client.locks.withLock("j", { ttl: 30 }, async ({ signal, lease }) => lease.fencingToken);
  if (result.error) throw result.error;
  return result.acquired ? result.data : kept.fencingToken;
}

export async function byHand({ locks }: Client, token: string): Promise<number> {
  const result = await locks.acquire("k", { ttl: 30, token, requestId: null });
  if (result.error) {
    const uncertain: UncertainLease | null = result.lease;
    if (uncertain === null) throw result.error;
    const none: null = uncertain.fencingToken;
    const record: UncertainLeaseRecord = uncertain.toRecord();
    const { lease } = await locks.renew("k", Lease.fromRecord(record), { ttl: 60 });
    await locks.release("k", uncertain);
    return lease?.fencingToken ?? none ?? 0;
  }
  if (!result.acquired) {
    const reason: "lock_held" | "lock_ownership_lost" = result.reason;
    return reason.length;
  }
  const { lease, error } = await locks.renew("k", result.lease, { ttl: 60 });
  if (error) throw error;
  const record: LeaseRecord = lease.toRecord();
  const token_: number = Lease.fromRecord(record).fencingToken;
  const { error: failed } = await locks.release("k", lease);
  if (failed instanceof LockOwnershipLostError) return failed.status ?? token_;
  if (failed instanceof VolcanoError) throw failed;
  return lease.expiresAt.getTime() + result.lease.fencingToken;
}

export async function narrowed({ locks }: Client, token: string): Promise<number> {
  const { lease, error } = await locks.acquire("k", { ttl: 30, token });
  // @ts-expect-error: the outcome may be unknown
  const early: number | undefined = lease?.fencingToken;
  if (error) throw error;
  if (!lease) return early ?? 0;
  return lease.fencingToken;
}

export async function olderForms({ locks }: Client, lease: Lease): Promise<void> {
  // @ts-expect-error: the key comes first
  await locks.renew(lease, { ttl: 30 });
  // @ts-expect-error: the key comes first
  await locks.release(lease);
  // @ts-expect-error: a lease is needed
  await locks.renew("k", { ttl: 30 });
  // @ts-expect-error: a lease is needed
  await locks.release("k");
  // @ts-expect-error: unknown option
  new Client({ apiURL: "http://x.test" });
}

export async function throwing(client: Client): Promise<number> {
  const logger: Logger = console;
  const locks: ThrowingLocks = new Client({ logger }).locks.throwOnError();
  try {
    const lease: Lease = await locks.acquire("k", { ttl: 30 });
    return await locks.withLock("j", { ttl: 30, renewEvery: 5 }, () => lease.fencingToken);
  } catch (error) {
    if (error instanceof LockHeldError) return (error.expiresAt?.getTime() ?? 0) + (error.fencingToken ?? 0);
    throw error;
  }
}

export async function lossOf({ locks }: Client): Promise<string> {
  const { acquired, data, error, reason } = await locks.withLock("k", { ttl: 30 }, () => "done");
  if (acquired && error) return data ?? error.message;
  if (acquired) return data.trim();
  return error === null ? reason : error.message;
}

export async function more({ locks }: Client, signal: AbortSignal, any: ExclusiveOptions): Promise<number | undefined> {
  const { data, error } = await locks.lead("k", { ttl: 30, signal }, ({ lease }) => lease.fencingToken);
  for await (const change of locks.watch("k", { signal })) {
    const { held, since }: Leadership = change;
    if (held && since !== null) break;
  }
  for await (const { key, expiresAt } of locks.list("k", { state: "held" })) if (expiresAt !== null) return key.length;
  const sure = locks.exclusive("k", { ttl: 30 }, (text: string) => text.length);
  const skipped = locks.exclusive((text: string) => text, { ttl: 30, onHeld: "skip" }, async (text) => text.length);
  const anyOptions = locks.exclusive("k", any, () => 3);
  const inferred = locks.exclusive("k", { ttl: 5, passGuard: true }, (day: string, guard) => guard.lease.key + day);
  const text: string = (await inferred("monday")) + String(await anyOptions());
  // @ts-expect-error: the argument is a string
  await inferred(text.length);
  const guarded = locks.exclusive("k", { ttl: 30, passGuard: true }, (_: string, guard: LockGuard) => guard.lost);
  const maybe = locks.exclusive("k", any as ExclusiveOptions & { passGuard?: false }, () => 1);
  const certain: number = await sure("a");
  const lost: boolean = await guarded("a");
  // @ts-expect-error: it may have been skipped
  const wrong: number = await skipped("a");
  // @ts-expect-error: onHeld may be skip
  const unsure: number = await maybe();
  return error === null && !lost ? data + certain : ((await maybe()) ?? (await skipped("a")));
}
`;

/** Declarations that the README's programs use. */
const AROUND_README = `
declare const process: { once(signal: string, then: () => void): void };
type Work = (with_: { signal: AbortSignal; fencingToken: number }) => Promise<number>;
declare const client: import("volcano-locks").Client;
declare const signal: AbortSignal;
declare const rollup: Work;
declare const tick: Work;
declare function migrate(guardOrToken: unknown): Promise<void>;
declare function cleanUp(fencingToken: number): Promise<void>;
declare function nightly(): Promise<void>;
declare function makeReport(day: string): Promise<string>;
`;

describe("the packed package", () => {
  let folder: string;
  const run = (program: string, ...args: string[]): string => {
    const { status, stdout, stderr } = spawnSync(program, args, { cwd: folder, encoding: "utf8" });
    if (status !== 0) throw new Error(`${program} ${args.join(" ")}: ${stdout}${stderr}`);
    return stdout.trim();
  };

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "volcano-locks-"));
    execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], { cwd: ROOT, stdio: "pipe" });
    writeFileSync(join(folder, "package.json"), '{"private": true}');
    run("npm", "install", "--offline", "--no-audit", "--no-fund", "./volcano-locks-0.1.0.tgz");
  }, SLOW_MS);

  afterAll(() => {
    rmSync(folder, { recursive: true });
  });

  it("contains only the needed files and has no dependencies", () => {
    const packed = join(folder, "node_modules/volcano-locks");
    expect(readdirSync(packed).sort()).toEqual(["LICENSE", "README.md", "dist", "package.json"]);
    expect(readdirSync(join(folder, "node_modules")).filter((name) => !name.startsWith("."))).toEqual([
      "volcano-locks",
    ]);
  });

  it("works by import", () => {
    const imports = `import ${NAMES} from "volcano-locks"; import { FakeClient } from "volcano-locks/testing";`;
    writeFileSync(join(folder, "program.mjs"), imports + PROGRAM);
    expect(run("node", "program.mjs")).toBe(OUTPUT);
  });

  it("works by require", () => {
    const requires = `const ${NAMES} = require("volcano-locks"); const { FakeClient } = require("volcano-locks/testing");`;
    writeFileSync(join(folder, "program.cjs"), requires + PROGRAM);
    expect(run("node", "program.cjs")).toBe(OUTPUT);
  });

  it(
    "has types for both builds and both compilers, even without the disposal library",
    () => {
      mkdirSync(join(folder, "typed"));
      writeFileSync(join(folder, "typed/esm.mts"), TYPED);
      writeFileSync(join(folder, "typed/cjs.cts"), TYPED);
      writeFileSync(
        join(folder, "typed/old.mts"),
        'import { Client } from "volcano-locks"; export default new Client();',
      );
      const strict = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--target", "es2022", QUICK];
      const nodenext = ["--module", "nodenext"];
      const bundler = ["--module", "esnext", "--moduleResolution", "bundler"];
      const disposal = ["--lib", "ES2022,DOM,ESNext.Disposable"];
      const [current, oldest] = COMPILERS;
      const compile = (compiler: string, ...args: string[]): string =>
        run("node", join(ROOT, compiler), ...strict, ...args);
      expect(compile(current, ...nodenext, ...disposal, "typed/esm.mts", "typed/cjs.cts")).toBe("");
      expect(compile(current, ...bundler, ...disposal, "typed/esm.mts")).toBe("");
      expect(compile(oldest, ...nodenext, ...disposal, "typed/esm.mts", "typed/cjs.cts")).toBe("");
      expect(compile(oldest, ...nodenext, "--lib", "ES2022,DOM", "typed/old.mts")).toBe("");
    },
    SLOW_MS,
  );

  it("has error classes that cost an importer less than 2 KB", async () => {
    const entry = join(folder, "only_errors.mjs");
    writeFileSync(entry, 'export * from "volcano-locks/errors";');
    const built = await build({
      configFile: false,
      logLevel: "silent",
      build: { write: false, modulePreload: false, rollupOptions: { input: entry, preserveEntrySignatures: "strict" } },
    });
    const { output } = built as unknown as { output: [{ code: string }] };
    expect(output[0].code.length).toBeLessThan(2_048);
    const program = `
      import * as all from "volcano-locks";
      import * as errors from "volcano-locks/errors";
      const kept = Object.keys(errors).every((name) => errors[name] === all[name] && new errors[name]("x").name === name);
      console.log(kept, JSON.stringify(new errors.LockHeldError("x", { status: 409, key: "k" })));
    `;
    writeFileSync(join(folder, "errors.mjs"), program);
    const shown = '{"status":409,"code":null,"retryAfter":null,"requestId":null,"name":"LockHeldError","key":"k",';
    expect(run("node", "errors.mjs")).toContain(`true ${shown}`);
  });

  it(
    "has a README whose programs compile",
    () => {
      const blocks = [...readFileSync(join(ROOT, "README.md"), "utf8").matchAll(/```ts\n(.*?)```/gs)];
      expect(blocks.length).toBeGreaterThan(7);
      const readme = join(folder, "readme");
      mkdirSync(readme);
      writeFileSync(join(readme, "around.d.ts"), AROUND_README);
      const names = blocks.map(([, text], at) => {
        writeFileSync(join(readme, `${at}.mts`), `${text}\nexport {};\n`);
        return `readme/${at}.mts`;
      });
      const flags = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", QUICK];
      run(
        "node",
        join(ROOT, COMPILERS[0]),
        ...flags,
        "--lib",
        "ES2022,DOM,ESNext.Disposable",
        "readme/around.d.ts",
        ...names,
      );
    },
    SLOW_MS,
  );

  it("the condition node selects the build with node:http; Bun, Deno, edge runtimes and bundlers get the other", () => {
    const program = `
      import { createRequire } from "node:module";
      console.log(import.meta.resolve("volcano-locks"), createRequire(import.meta.url).resolve("volcano-locks/testing"));
    `;
    writeFileSync(join(folder, "resolved.mjs"), program);
    expect(run("node", "resolved.mjs")).toMatch(/dist\/node\/index.mjs .*dist\/node\/testing.cjs$/);
    const { exports } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
    for (const kind of ["import", "require"]) {
      for (const entry of [exports["."][kind], exports["./testing"][kind]]) {
        expect(Object.keys(entry)).toEqual(["types", "bun", "deno", "node", "default"]);
        expect([entry.bun, entry.deno]).toEqual([entry.default, entry.default]);
      }
    }
    const dist = join(folder, "node_modules/volcano-locks/dist");
    const files = readdirSync(dist).filter((name) => /\.[cm]js$/.test(name));
    expect(files.length).toBeGreaterThan(3);
    for (const name of files) {
      expect(readFileSync(join(dist, name), "utf8")).not.toMatch(/(from|require\()\s*"node:/);
    }
  });

  it("a lease of the ESM build works with the CommonJS build", () => {
    const program = `
      import { createRequire } from "node:module";
      import { FakeClient, FakeLocks } from "volcano-locks/testing";
      const { Client, Lease } = createRequire(import.meta.url)("volcano-locks");
      const server = new FakeLocks();
      const { lease } = await server.client().locks.acquire("k", { ttl: 30 });
      const other = new Client({ apiUrl: "http://x.test", serviceKey: "sk", clock: server.clock, fetch: server.fetch });
      console.log(lease instanceof Lease, JSON.stringify(await other.locks.release("k", lease)));
    `;
    writeFileSync(join(folder, "both.mjs"), program);
    expect(run("node", "both.mjs")).toBe('true {"error":null}');
  });

  it("SDK-9: instanceof works between the ESM and the CommonJS build, and is strict for a program's own subclasses", () => {
    const program = `
      import { createRequire } from "node:module";
      import * as esm from "volcano-locks";
      const cjs = createRequire(import.meta.url)("volcano-locks");
      const names = Object.keys(esm).filter((name) => name.endsWith("Error"));
      const wrong = [];
      for (const [here, there] of [[esm, cjs], [cjs, esm]]) {
        for (const made of names) {
          const error = new here[made]("x");
          class Mine extends there[made] {}
          if (here[made] === there[made] || error instanceof Mine) wrong.push(made);
          if (!(new Mine("x") instanceof here[made])) wrong.push("subclass of " + made);
          for (const asked of names) {
            if ((error instanceof here[asked]) !== (error instanceof there[asked])) wrong.push(made + " " + asked);
          }
        }
      }
      console.log(names.length, JSON.stringify(wrong));
    `;
    writeFileSync(join(folder, "instances.mjs"), program);
    expect(run("node", "instances.mjs")).toBe("12 []");
  });

  it("runs with web standards only, as on edge runtimes", async () => {
    const { AbortController, AbortSignal, Headers, Response, URL, URLSearchParams } = globalThis;
    const { ReadableStream, TextDecoder, TextEncoder } = globalThis;
    const requests = { AbortController, AbortSignal, Headers, Response, URL, URLSearchParams };
    const web = { ...requests, ReadableStream, TextDecoder, TextEncoder, crypto, performance };
    const timers = {
      setTimeout: (wake: () => void, ms: number) => Number(setTimeout(wake, ms)),
      clearTimeout,
      queueMicrotask,
    };
    const edge = createContext({ ...web, ...timers });
    const load = (name: string): Record<string, unknown> => {
      const module = { exports: {} };
      const text = readFileSync(join(folder, "node_modules/volcano-locks/dist", name), "utf8");
      const within = new Script(`(function (module, exports, require) {${text}\n})`).runInContext(edge);
      within(module, module.exports, load);
      return module.exports;
    };
    const { FakeClient } = load("testing.cjs") as { FakeClient: new () => Client };
    const { locks } = new FakeClient();
    expect(await locks.withLock("k", { ttl: 30 }, ({ lease }) => lease.key)).toMatchObject({ data: "k", error: null });
    for await (const { held } of locks.watch("k")) {
      expect(held).toBe(false);
      break;
    }
    expect((await locks.list().next()).value).toMatchObject({ key: "k" });
    // Without AsyncLocalStorage the service refuses a nested block (SDK-26).
    const nested = await locks.withLock("k", { ttl: 30 }, () => locks.withLock("k", { ttl: 30 }, () => 0));
    expect(nested.data).toMatchObject({ acquired: false, error: null, reason: "lock_held" });
    const { Client: Real } = load("index.cjs") as { Client: new (options: ClientOptions) => Client };
    const fetch = async (): Promise<Response> => Response.json({ held: false });
    const real = new Real({ apiUrl: "https://locks.test", serviceKey: "sk", fetch });
    expect((await real.locks.get("k")).state?.held).toBe(false);
    expect(() => new Real({})).toThrow("serviceKey is missing");
  });

  it("has a conformance adapter that follows its protocol", () => {
    const requests = [
      { verb: "open", args: { fake: true } },
      ...["ann", "bob", "someone"].map((actor) => ({ verb: "client", args: { actor } })),
      { verb: "enter", args: { actor: "ann", key: "k", ttl_seconds: 30, lease: "ann_1", token: null } },
      { verb: "advance_ms", args: { value: 300_000 } },
      { verb: "acquire", args: { actor: "bob", key: "k", ttl_seconds: 30, lease: "bob_2", token: null } },
      { verb: "wait", args: { actor: "bob", key: "k", ttl_seconds: 30, lease: "bob_3", wait_seconds: "forever" } },
      { verb: "waited", args: { actor: "bob", key: "k" } },
      { verb: "view", args: { actor: "someone", key: "k" } },
      { verb: "exit", args: { actor: "ann", key: "k" } },
      { verb: "waited", args: { actor: "bob", key: "k" } },
      { verb: "release", args: { actor: "bob", key: "k", lease: "bob_3" } },
      { verb: "list", args: { actor: "someone", prefix: "", state: "all" } },
      { verb: "get", args: { actor: "someone", key: "k" } },
      { verb: "no_such_verb", args: {} },
      { verb: "close", args: {} },
    ];
    const input = requests.map((one) => `${JSON.stringify(one)}\n`).join("");
    const { stdout } = spawnSync("node", [join(ROOT, "conformance-adapter.mjs")], { input, encoding: "utf8" });
    const responses = stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(responses).toEqual([
      ...[{ answer: {} }, { answer: {} }, { answer: {} }, { answer: {} }],
      { answer: { lost: false, stopped: false, expires_at_ms: 1767225630000, fencing_token: 1767225600000 } },
      { answer: {} },
      { answer: { error: "lock_held" } },
      { answer: {} },
      { answer: { pending: true } },
      { answer: expect.objectContaining({ held: true, holder: "ann", waiters: 1, acquired_at_ms: 1767225600000 }) },
      { answer: {} },
      { answer: { expires_at_ms: 1767225930000, fencing_token: 1767225900000 } },
      { answer: {} },
      { answer: { keys: ["k"] } },
      { answer: { held: false } },
      { crash: expect.stringContaining("no_such_verb") },
      { answer: {} },
    ]);
  });

  it("a pending wait keeps the process alive, even between two requests (SDK-11)", () => {
    const program = `
      import { Client } from "volcano-locks";
      let requests = 0;
      const busy = () => Response.json({ error: "stopping", code: "lock_service_unavailable" }, { status: 503 });
      const lease = { expires_at: "2026-07-20T14:00:10Z", fencing_token: 1 };
      const fetch = async () => ((requests += 1) < 3 ? busy() : Response.json(lease, { status: 201 }));
      const client = new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch });
      client.locks.acquire("k", { ttl: 30, wait: Infinity }).then(({ acquired }) => console.log(acquired, requests));
    `;
    writeFileSync(join(folder, "waits.mjs"), program);
    expect(run("node", "waits.mjs")).toBe("true 3");
  });

  it("a left watch and a cancelled wait do not keep the process alive", () => {
    const program = `
      import { createServer } from "node:http";
      import { Client } from "volcano-locks";
      const row = { key: "k", held: false, holder: null, acquired_at: null, renewed_at: null, expires_at: null };
      const server = createServer((request, response) => {
        if (request.url.endsWith("/events")) {
          response.writeHead(200, { "Content-Type": "text/event-stream" });
          response.write("id: 1\\n\\n");
        } else if (request.method === "GET") {
          response.end(JSON.stringify({ ...row, ttl_seconds: null, fencing_token: null, waiters: 0 }));
        } else if (request.method === "DELETE") {
          response.writeHead(204).end();
        }
      });
      await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
      const client = new Client({ apiUrl: "http://127.0.0.1:" + server.address().port, serviceKey: "sk" });
      for await (const { held } of client.locks.watch("k")) {
        console.log(held);
        break;
      }
      const signal = AbortSignal.timeout(50);
      const { error } = await client.locks.acquire("k", { ttl: 30, wait: Infinity, signal });
      console.log(error.cause === signal.reason);
      server.close();
      setTimeout(() => server.closeIdleConnections(), 100);
    `;
    writeFileSync(join(folder, "left.mjs"), program);
    expect(run("node", "left.mjs")).toBe("false\ntrue");
  });

  it("case 10: after a really blocked event loop the signal is aborted", () => {
    const program = `
      import { Client } from "volcano-locks";
      const fetch = async () => Response.json({ expires_at: "2026-07-20T14:00:10Z", fencing_token: 1 }, { status: 201 });
      const client = new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch });
      const { error } = await client.locks.withLock("k", { ttl: 5 }, ({ signal }) => {
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5_100);
        console.log(signal.aborted);
      });
      console.log(error.name);
    `;
    writeFileSync(join(folder, "blocked.mjs"), program);
    expect(run("node", "blocked.mjs")).toBe("true\nLockOwnershipLostError");
  });
});
