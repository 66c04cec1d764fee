// Contention is neither a lease nor an error.
import { Client } from "volcano-locks";

const [key] = process.argv.slice(2);
const { locks } = new Client();

const first = await locks.acquire(key, { ttl: 30 });
if (!first.acquired) throw first.error ?? new Error("the lock is held elsewhere");

const second = await locks.acquire(key, { ttl: 30 });
if (second.error) throw second.error;
if (!second.acquired) console.log("held elsewhere");

const { error } = await locks.release(key, first.lease);
if (error) throw error;
