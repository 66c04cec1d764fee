// A worker for the story of the stopped holder. What it reads and tells: ../story.py.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as rest } from "node:timers/promises";

const { Client, LockOwnershipLostError } = await import(process.env.FENCING_CLIENT);

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

function run(command, fencingToken) {
  const env = { ...process.env, FENCING_TOKEN: String(fencingToken) };
  return new Promise((resolve) => {
    const child = spawn("sh", ["-c", command], { env, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    for (const output of [child.stdout, child.stderr]) output.on("data", (text) => (said += text));
    child.on("close", (exitCode) => resolve({ exit_code: exitCode, said }));
  });
}

async function work({ signal, lease }) {
  tell({ held: lease.fencingToken });
  for await (const line of createInterface({ input: process.stdin })) {
    tell({ lost: signal.aborted });
    const ran = await run(line, lease.fencingToken);
    tell({ ...ran, lost: signal.aborted });
  }
}

const client = new Client();
const ttl = Number(process.env.FENCING_TTL);
for (;;) {
  const { acquired, error } = await client.locks.withLock(process.env.FENCING_KEY, { ttl }, work);
  if (error instanceof LockOwnershipLostError) tell({ ended: "lost" });
  else if (error) throw error;
  else if (acquired) tell({ ended: "held" });
  if (acquired) break;
  await rest(100);
}
