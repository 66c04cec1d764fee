/** The packed package, as a program that depends on it sees it. `npm test` builds it first. */

import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createContext, Script } from "node:vm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Client, ClientOptions } from "../src/index.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const SLOW_MS = 60_000;

const PROGRAM = `
const client = new FakeClient();
client.locks.withLock("k", { ttl: 30 }, ({ lease, signal }) => [lease.fencingToken, signal.aborted]).then((result) => {
  console.log(JSON.stringify([result, VERSION, new LockHeldError("x") instanceof VolcanoError, typeof Client]));
});
`;
const NAMES = "{ Client, LockHeldError, VERSION, VolcanoError }";
const SAID = '[{"acquired":true,"data":[1767225600000,false],"error":null},"0.1.0",true,"function"]';

const TYPED = `
import { Client, type Lease, type VolcanoError } from "volcano-locks";
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

  it("holds what is needed and nothing else, and depends on nothing", () => {
    const packed = join(folder, "node_modules/volcano-locks");
    expect(readdirSync(packed).sort()).toEqual(["LICENSE", "README.md", "dist", "package.json"]);
    expect(readdirSync(join(folder, "node_modules")).filter((name) => !name.startsWith("."))).toEqual([
      "volcano-locks",
    ]);
  });

  it("works by import", () => {
    const imports = `import ${NAMES} from "volcano-locks"; import { FakeClient } from "volcano-locks/testing";`;
    writeFileSync(join(folder, "program.mjs"), imports + PROGRAM);
    expect(run("node", "program.mjs")).toBe(SAID);
  });

  it("works by require", () => {
    const requires = `const ${NAMES} = require("volcano-locks"); const { FakeClient } = require("volcano-locks/testing");`;
    writeFileSync(join(folder, "program.cjs"), requires + PROGRAM);
    expect(run("node", "program.cjs")).toBe(SAID);
  });

  it(
    "has types for both, also where nobody has heard of disposal",
    () => {
      mkdirSync(join(folder, "typed"));
      writeFileSync(join(folder, "typed/esm.mts"), TYPED);
      writeFileSync(join(folder, "typed/cjs.cts"), TYPED);
      writeFileSync(
        join(folder, "typed/old.mts"),
        'import { Client } from "volcano-locks"; export default new Client();',
      );
      const tsc = join(ROOT, "node_modules/.bin/tsc");
      const flags = [
        "--noEmit",
        "--strict",
        "--exactOptionalPropertyTypes",
        "--module",
        "nodenext",
        "--target",
        "es2022",
      ];
      run(tsc, ...flags, "--lib", "ES2022,DOM,ESNext.Disposable", "typed/esm.mts", "typed/cjs.cts");
      run(tsc, ...flags, "--lib", "ES2022,DOM", "typed/old.mts");
    },
    SLOW_MS,
  );

  it("a lease of its ESM form serves its CommonJS form", () => {
    const program = `
      import { createRequire } from "node:module";
      import { FakeClient, FakeLocks } from "volcano-locks/testing";
      const { Client } = createRequire(import.meta.url)("volcano-locks");
      const server = new FakeLocks();
      const { lease } = await server.client().locks.acquire("k", { ttl: 30 });
      const other = new Client({ apiUrl: "http://x.test", serviceKey: "sk", clock: server.clock, fetch: server.fetch });
      console.log(JSON.stringify(await other.locks.release(lease)));
    `;
    writeFileSync(join(folder, "both.mjs"), program);
    expect(run("node", "both.mjs")).toBe('{"error":null}');
  });

  it("runs where there is nothing but the web's standards, as on the edge", async () => {
    const { AbortController, AbortSignal, Headers, Response, URL, TextDecoder } = globalThis;
    const web = { AbortController, AbortSignal, Headers, Response, URL, TextDecoder, crypto, performance };
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
    const { Client: Real } = load("index.cjs") as { Client: new (options: ClientOptions) => Client };
    const fetch = async (): Promise<Response> => Response.json({ held: false });
    const real = new Real({ apiUrl: "https://locks.test", serviceKey: "sk", fetch });
    expect((await real.locks.get("k")).state?.held).toBe(false);
    expect(() => new Real({})).toThrow("apiUrl is missing");
  });

  it("speaks the language of the conformance book", () => {
    const asked = [
      { verb: "open", args: { fake: true } },
      { verb: "enter", args: { actor: "ann", key: "k", ttl_seconds: 30, lease: "ann_1", token: null } },
      { verb: "advance_ms", args: { value: 300_000 } },
      { verb: "acquire", args: { actor: "bob", key: "k", ttl_seconds: 30, lease: "bob_2", token: null } },
      { verb: "exit", args: { actor: "ann", key: "k" } },
      { verb: "get", args: { actor: "someone", key: "k" } },
      { verb: "no_such_verb", args: {} },
      { verb: "close", args: {} },
    ];
    const input = asked.map((one) => `${JSON.stringify(one)}\n`).join("");
    const { stdout } = spawnSync("node", [join(ROOT, "conformance-adapter.mjs")], { input, encoding: "utf8" });
    const answers = stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(answers).toEqual([
      { answer: {} },
      { answer: { lost: false, stopped: false, expires_at_ms: 1767225630000, fencing_token: 1767225600000 } },
      { answer: {} },
      { answer: { error: "lock_held" } },
      { answer: {} },
      { answer: { held: false } },
      { crash: expect.stringContaining("no_such_verb") },
      { answer: {} },
    ]);
  });

  it("a hold that nobody waits for keeps no process alive (SDK-6)", () => {
    const program = `
      import { Client } from "volcano-locks";
      const fetch = async () => Response.json({ expires_at: "2026-07-20T14:00:10Z", fencing_token: 1 }, { status: 201 });
      const client = new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch });
      client.locks.withLock("k", { ttl: 7776000 }, () => new Promise(() => {}));
      setTimeout(() => console.log("over"), 50);
    `;
    writeFileSync(join(folder, "quiet.mjs"), program);
    expect(run("node", "quiet.mjs")).toBe("over");
  });

  it("case 10: a loop that was really blocked past the lease finds its signal aborted", () => {
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
