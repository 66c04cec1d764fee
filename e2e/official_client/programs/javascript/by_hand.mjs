// Acquire, renew and release by hand.
import { Client } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client();

const { acquired, lease, error } = await locks.acquire(key, { ttl: 30 });
if (error) throw error;
if (!acquired) throw new Error("the lock is held elsewhere");
try {
  const renewed = await locks.renew(key, lease, { ttl: 60 });
  if (renewed.error) throw renewed.error;
  console.log(`same token: ${renewed.lease.fencingToken === lease.fencingToken}`);
} finally {
  const released = await locks.release(key, lease);
  if (released.error) throw released.error;
  console.log("released");
}
