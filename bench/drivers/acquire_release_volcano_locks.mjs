// Driver: acquire and release with the built JavaScript client.
import { createInterface } from "node:readline";
import { Client } from "../../sdks/javascript/dist/node/index.mjs";

const { BENCH_URL: apiUrl, BENCH_SERVICE_KEY: serviceKey, BENCH_KEY: key } = process.env;
const { locks } = new Client({ apiUrl, serviceKey });

for await (const line of createInterface({ input: process.stdin })) {
  const durations_ns = [];
  for (let left = Number(line); left > 0; left -= 1) {
    const began = process.hrtime.bigint();
    const { acquired, lease, error } = await locks.acquire(key, { ttl: 30 });
    if (!acquired) throw error ?? new Error("the lock is held");
    const released = await locks.release(key, lease);
    if (released.error) throw released.error;
    durations_ns.push(Number(process.hrtime.bigint() - began));
  }
  console.log(JSON.stringify(durations_ns));
}
