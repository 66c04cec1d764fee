/**
 * Starts a real server for tests, from the repository's `.venv` or from the Python named by VOLCANO_LOCKS_PYTHON.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { defined } from "./harness.ts";

export interface Address {
  readonly apiUrl: string;
  readonly serviceKey: string;
}

export interface RealServer {
  readonly at: Address;
  stop(): Promise<void>;
}

export const START_MS_MAX = 30_000;

function command(): string {
  const python = process.env.VOLCANO_LOCKS_PYTHON;
  const here = fileURLToPath(new URL(".", import.meta.url));
  const bin = python === undefined ? join(here, "../../../.venv/bin") : dirname(python);
  const path = join(bin, "volcano-locks");
  if (!existsSync(path)) throw new Error(`no server at ${path}: run make setup, or set VOLCANO_LOCKS_PYTHON`);
  return path;
}

/** The address that `volcano-locks dev` prints. The pipe stays open, since a closed one would end the server. */
async function started(server: ChildProcess): Promise<Address> {
  const stdout = defined(server.stdout);
  let shown = "";
  for await (const chunk of stdout.iterator({ destroyOnReturn: false })) {
    shown += String(chunk);
    const apiUrl = /VOLCANO_API_URL=(\S+)/.exec(shown)?.[1];
    const serviceKey = /VOLCANO_SERVICE_KEY=(\S+)\s/.exec(shown)?.[1];
    if (apiUrl === undefined || serviceKey === undefined) continue;
    stdout.resume();
    return { apiUrl, serviceKey };
  }
  throw new Error(`the server did not start: ${shown}`);
}

export async function startedServer(): Promise<RealServer> {
  const server = spawn(command(), ["dev", "--port", "0"], { stdio: ["ignore", "pipe", "ignore"] });
  const at = await started(server);
  const stop = async (): Promise<void> => {
    const ended = new Promise((resolve) => server.once("exit", resolve));
    server.kill();
    await ended;
  };
  return { at, stop };
}
