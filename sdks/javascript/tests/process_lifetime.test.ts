/**
 * SDK-19: a program lives until its pending block, campaign, watch or wait ends, and no longer. The tests run real programs
 * that use the built package and a real server; `npm test` builds it first.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Client } from "../src/index.ts";
import { defined, granted } from "./harness.ts";
import { type RealServer, START_MS_MAX, startedServer } from "./real_server.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
/** Ends a program that a leaked timer keeps alive after its last statement. It runs inside the program, on its time. */
const LEAK_CHECK = 'setTimeout(() => { console.log("kept alive"); process.exit(1); }, 1_000).unref();';

/** A running program and the lines that it has printed. */
class Program {
  readonly #lines: string[] = [];
  readonly #process: ChildProcess;
  readonly #ended: Promise<number | null>;
  #stderr = "";

  constructor(path: string, env: NodeJS.ProcessEnv) {
    this.#process = spawn(process.execPath, [path], { env, stdio: ["ignore", "pipe", "pipe"] });
    this.#process.stderr?.on("data", (text) => {
      this.#stderr += text;
    });
    this.#process.stdout?.on("data", (text) => {
      this.#lines.push(...String(text).trim().split("\n"));
    });
    this.#ended = new Promise((resolve) => this.#process.once("close", resolve));
  }

  async printed(...lines: string[]): Promise<void> {
    while (this.#lines.length < lines.length && this.#process.exitCode === null) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect([this.#lines, this.#stderr]).toEqual([lines, ""]);
  }

  /** Its lines, after it has ended successfully. */
  async lines(): Promise<string[]> {
    const exitCode = await this.#ended;
    expect([exitCode, this.#stderr]).toEqual([0, ""]);
    return this.#lines;
  }

  stop(): void {
    this.#process.kill();
  }
}

describe.concurrent("SDK-19: a program lives until its pending call ends", () => {
  const programs: Program[] = [];
  let folder: string;
  let server: RealServer;
  let client: Client;

  const run = (key: string, body: string): Program => {
    const path = join(folder, `${key}.mjs`);
    writeFileSync(
      path,
      `import { Client } from "volcano-locks";\nconst { locks } = new Client();\n${body}\n${LEAK_CHECK}`,
    );
    const { apiUrl, serviceKey } = server.at;
    const program = new Program(path, {
      ...process.env,
      VOLCANO_API_URL: apiUrl,
      VOLCANO_SERVICE_KEY: serviceKey,
    });
    programs.push(program);
    return program;
  };

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), "volcano-locks-"));
    mkdirSync(join(folder, "node_modules"));
    symlinkSync(ROOT, join(folder, "node_modules/volcano-locks"));
    server = await startedServer();
    client = new Client(server.at);
  }, START_MS_MAX);

  afterAll(async () => {
    for (const program of programs) program.stop();
    await server.stop();
    rmSync(folder, { recursive: true });
  }, START_MS_MAX);

  it("case 45: a block whose callback only awaits the abort sees the loss (real_time)", async () => {
    const program = run(
      "block",
      `const { error } = await locks.withLock("block", { ttl: 5 }, ({ signal }) => new Promise((resolve) => {
        console.log("holding");
        signal.addEventListener("abort", resolve);
      }));
      console.log(error.name);`,
    );
    await program.printed("holding");
    await client.locks.forceRelease("block");
    expect(await program.lines()).toEqual(["holding", "LockOwnershipLostError"]);
  });

  it("case 45: lead campaigns again after the loss (real_time)", async () => {
    const program = run(
      "lead",
      `let terms = 0;
      const { data } = await locks.lead("lead", { ttl: 5 }, ({ signal }) => new Promise((resolve) => {
        console.log("leading");
        terms += 1;
        if (terms === 2) resolve("resigned");
        signal.addEventListener("abort", resolve);
      }));
      console.log(data);`,
    );
    await program.printed("leading");
    await client.locks.forceRelease("lead");
    expect(await program.lines()).toEqual(["leading", "leading", "resigned"]);
  });

  it("a body that continues after its loss keeps the process alive (real_time)", async () => {
    const program = run(
      "after",
      `const { acquired, data, error } = await locks.withLock("after", { ttl: 5 }, async ({ signal }) => {
        console.log("holding");
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        await new Promise((resolve) => setTimeout(resolve, 1_000).unref());
        return "cleaned up";
      });
      console.log(acquired, data, error.name);`,
    );
    await program.printed("holding");
    await client.locks.forceRelease("after");
    expect(await program.lines()).toEqual(["holding", "true cleaned up LockOwnershipLostError"]);
  });

  it("case 48: many blocks and waits share one signal without a warning, and leave no listener on it (real_time)", async () => {
    const program = run(
      "shared",
      `import { getEventListeners } from "node:events";
      const { signal } = new AbortController();
      process.on("warning", ({ name }) => console.log(name));
      const body = () => new Promise((resolve) => setTimeout(resolve, 100));
      const blocks = Array.from({ length: 12 }, (_, i) => locks.withLock("shared-" + i, { ttl: 5, signal }, body));
      const waits = Array.from({ length: 12 }, () => locks.acquire("shared-0", { ttl: 5, wait: 0.3, signal }));
      for (const { lease } of await Promise.all([...blocks, ...waits])) {
        if (lease) await locks.release("shared-0", lease);
      }
      console.log(getEventListeners(signal, "abort").length);`,
    );
    expect(await program.lines()).toEqual(["0"]);
  });

  it("a watch keeps the process alive until its loop is left (real_time)", async () => {
    const program = run(
      "watch",
      `for await (const { held } of locks.watch("watch")) {
        console.log(held);
        if (held) break;
      }`,
    );
    await program.printed("false");
    const lease = granted(await client.locks.acquire("watch", { ttl: 30 }));
    expect(await program.lines()).toEqual(["false", "true"]);
    await client.locks.release("watch", lease);
  });

  it("a wait keeps the process alive, and the program ends with its block (real_time)", async () => {
    const lease = granted(await client.locks.acquire("wait", { ttl: 30 }));
    const program = run(
      "wait",
      `const { data } = await locks.withLock("wait", { ttl: 7_776_000, wait: Infinity }, () => "waited");
      console.log(data);`,
    );
    while (defined((await client.locks.view("wait")).view).waiters === 0) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    await client.locks.release("wait", lease);
    expect(await program.lines()).toEqual(["waited"]);
    expect((await client.locks.get("wait")).state?.held).toBe(false);
  });

  it("a lease of acquire does not keep the process alive (SDK-6)", async () => {
    const program = run("plain", `console.log((await locks.acquire("plain", { ttl: 7_776_000 })).acquired);`);
    expect(await program.lines()).toEqual(["true"]);
  });
});
