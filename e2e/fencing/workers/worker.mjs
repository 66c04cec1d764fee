// A worker for the tests of paused holders. Its protocol: ../worker_process.py.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const { Client, LockOwnershipLostError } = await import(process.env.FENCING_CLIENT);

const report = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

function run(command, fencingToken) {
  const env = { ...process.env, FENCING_TOKEN: String(fencingToken) };
  return new Promise((resolve) => {
    const child = spawn("sh", ["-c", command], { env, stdio: ["ignore", "pipe", "pipe"] });
    let text = "";
    for (const output of [child.stdout, child.stderr]) output.on("data", (part) => (text += part));
    child.on("close", (exitCode) => resolve({ exit_code: exitCode, output: text }));
  });
}

async function work({ signal, lease }) {
  report({ held: lease.fencingToken });
  for await (const line of createInterface({ input: process.stdin })) {
    report({ lost: signal.aborted });
    const ran = await run(line, lease.fencingToken);
    report({ ...ran, lost: signal.aborted });
  }
}

const client = new Client();
const ttl = Number(process.env.FENCING_TTL);
for (;;) {
  const { acquired, error } = await client.locks.withLock(process.env.FENCING_KEY, { ttl }, work);
  if (error instanceof LockOwnershipLostError) report({ ended: "lost" });
  else if (error) throw error;
  else if (acquired) report({ ended: "held" });
  if (acquired) break;
  await sleep(100);
}
