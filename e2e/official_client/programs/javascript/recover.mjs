// An acquire whose outcome is unknown is recovered with the same token and request id.
import { randomUUID } from "node:crypto";
import { Client, TransportError, UnavailableError } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client({ timeoutSeconds: 2 });
const ids = { token: randomUUID(), requestId: randomUUID() };

let result = await locks.acquire(key, { ttl: 30, ...ids });
if (result.error instanceof TransportError || result.error instanceof UnavailableError) {
  console.log("uncertain");
  result = await locks.acquire(key, { ttl: 30, ...ids });
}
if (!result.acquired) throw result.error ?? new Error("the lock is held elsewhere");
console.log("recovered");

const { error } = await locks.release(key, result.lease);
if (error) throw error;
console.log("released");
