// A block holds the lock while its body runs, and releases it at the end.
import { Client } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client();

const result = await locks.withLock(key, { ttl: 30 }, async ({ signal, lease }) => {
  console.log(`fencing token ${lease.fencingToken}`);
  console.log(`lost: ${signal.aborted}`);
});
if (result.error) throw result.error;
if (!result.acquired) throw new Error("the lock is held elsewhere");

const { state, error } = await locks.get(key);
if (error) throw error;
console.log(`held: ${state.held}`);
