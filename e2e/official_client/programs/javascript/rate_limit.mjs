// A rate limit error says after how many seconds to retry.
import { Client, RateLimitedError } from "volcano-locks";

const REQUESTS_MAX = 50;
const [key] = process.argv.slice(2);
const { locks } = new Client();

let error = null;
for (let requests = 0; requests < REQUESTS_MAX && error === null; requests += 1) {
  ({ error } = await locks.get(key));
}
if (!(error instanceof RateLimitedError)) throw error ?? new Error("there is no rate limit");
console.log(`retry after ${error.retryAfter} seconds`);
