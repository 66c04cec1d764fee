// Driver: acquire with SET NX PX and release with a script, using node-redis.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { createClient } from "@redis/client";

const RELEASE = 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end';
const { BENCH_REDIS_PORT: port, BENCH_KEY: key } = process.env;
const client = await createClient({ socket: { host: "127.0.0.1", port: Number(port) } }).connect();
const release = await client.sendCommand(["SCRIPT", "LOAD", RELEASE]);

for await (const line of createInterface({ input: process.stdin })) {
  const durations_ns = [];
  for (let left = Number(line); left > 0; left -= 1) {
    const began = process.hrtime.bigint();
    const token = randomUUID();
    if ((await client.sendCommand(["SET", key, token, "NX", "PX", "30000"])) !== "OK") throw new Error("the lock is held");
    if (Number(await client.sendCommand(["EVALSHA", release, "1", key, token])) !== 1) throw new Error("not released");
    durations_ns.push(Number(process.hrtime.bigint() - began));
  }
  console.log(JSON.stringify(durations_ns));
}
client.destroy();
