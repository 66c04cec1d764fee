// A block whose body only waits for the loss of the lock.
import { Client, LockOwnershipLostError } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client();

const { error } = await locks.withLock(key, { ttl: 5 }, async ({ signal }) => {
  console.log("holding");
  await new Promise((resolve) => signal.addEventListener("abort", resolve));
  console.log("lost");
});
if (!(error instanceof LockOwnershipLostError)) throw error ?? new Error("the block ended without its loss");
