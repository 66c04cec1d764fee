// Read a lock and force its release; the old lease is then lost.
import { Client, LockOwnershipLostError } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client();

async function printHeld() {
  const { state, error } = await locks.get(key);
  if (error) throw error;
  console.log(`held: ${state.held}`);
}

const { acquired, lease, error } = await locks.acquire(key, { ttl: 30 });
if (!acquired) throw error ?? new Error("the lock is held elsewhere");
await printHeld();

const forced = await locks.forceRelease(key);
if (forced.error) throw forced.error;
await printHeld();

const renewed = await locks.renew(key, lease, { ttl: 30 });
console.log(`lost: ${renewed.error instanceof LockOwnershipLostError}`);
