// A worker of the torture in JavaScript. What it does and writes: ../worker_process.py.

import { writeSync, openSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const settings = JSON.parse(process.env.TORTURE);
const client = await import(settings.client);
const { Client, LockHeldError, LockOwnershipLostError, TransportError, UnavailableError } = client;
const TTL = settings.ttl_seconds;
const records = openSync(settings.records, "a");
const now = () => Number(process.hrtime.bigint()) / 1e9 + settings.boot_seconds_ahead;
const choice = (all) => all[Math.floor(Math.random() * all.length)];
let isStopping = false;

class Job {
  constructor(locks, owner) {
    const epoch = Math.floor((now() - settings.began_at) / settings.epoch_seconds);
    this.locks = locks;
    this.owner = owner;
    this.isContended = Math.random() < settings.contended;
    const number = this.isContended ? 0 : 1 + Math.floor(Math.random() * settings.keys);
    this.key = `busy.${number}.${epoch}`;
    this.wait = choice([0, 0, settings.wait_seconds]);
    this.options = this.wait ? { ttl: TTL, wait: this.wait } : { ttl: TTL };
  }

  run() {
    const kind = Math.random();
    return kind < 0.5 ? this.useBlock() : kind < 0.9 ? this.useCalls() : this.read();
  }

  async read() {
    const state = await this.call("get", () => this.locks.get(this.key), "granted", false);
    if (state) this.write("get", state.held ? "held" : "free", ...this.times, { fencing_token: state.fencingToken });
  }

  async useCalls() {
    let lease = await this.call("acquire", () => this.locks.acquire(this.key, this.options));
    if (!lease) return;
    for (let left = Math.floor(Math.random() * 3); left > 0; left--) {
      await sleep(Math.random() * 200);
      lease = await this.call("renew", () => this.locks.renew(this.key, lease, { ttl: TTL }));
      if (!lease) return;
    }
    if (!this.isContended && Math.random() < settings.abandoned) return;
    this.write("release", "unknown", now(), null); // this process may be killed before it knows the outcome
    await this.call("release", () => this.locks.release(this.key, lease), "done");
  }

  async useBlock() {
    const sentAt = now();
    let held = null;
    let leftAt = 0;
    try {
      await this.locks.withLock(this.key, this.options, async (guard) => {
        held = guard;
        this.write("acquire", "granted", sentAt, now(), { fencing_token: guard.lease.fencingToken });
        await this.hold(guard);
        leftAt = now();
        this.write("release", "unknown", leftAt, null);
      });
      this.write("release", held.releaseError ? "unknown" : "done", leftAt, now());
    } catch (error) {
      if (error instanceof LockOwnershipLostError && held) {
        await sleep(settings.late_seconds * 1000);
        await this.writeFenced(held.lease.fencingToken); // refused if the next holder has written
      } else if (held) throw error;
      else this.write("acquire", outcomeOf("acquire", error), sentAt, now());
    }
  }

  async hold(guard) {
    const isLong = !this.isContended && Math.random() < settings.long;
    const endsAt = now() + (isLong ? TTL * (1 + Math.random()) : 0.2 * Math.random());
    let first = 0;
    let last = 0;
    while (now() < endsAt && !isStopping) {
      const before = now();
      if (guard.lost) break;
      first ||= now();
      last = before;
      if (last - first > 1) first = this.believed(guard, first, last);
      await this.writeFenced(guard.lease.fencingToken);
      await sleep(50);
    }
    if (last > first && first > 0) this.believed(guard, first, last);
  }

  believed(guard, first, last) {
    const held = { fencing_token: guard.lease.fencingToken, ttl_seconds: last - first };
    this.write("renew", "granted", first, first, held);
    return last;
  }

  async writeFenced(token) {
    await (await fetch(`${settings.fence}/${this.key}/${token}`)).text();
  }

  async call(operation, send, success = "granted", isWritten = true) {
    const sentAt = now();
    let result = null;
    let outcome = success;
    try {
      result = (await send()) ?? true;
    } catch (error) {
      outcome = outcomeOf(operation, error);
    }
    this.times = [sentAt, now()];
    if (isWritten || result === null)
      this.write(operation, outcome, ...this.times, { fencing_token: result?.fencingToken ?? null });
    return result;
  }

  write(operation, outcome, sentAt, endedAt, more = {}) {
    const record = {
      client: this.owner.split("#")[0],
      operation,
      key: this.key,
      owner: this.owner,
      sent_at: sentAt,
      responded_at: outcome === "unknown" ? null : endedAt,
      ended_at: endedAt,
      outcome,
      ttl_seconds: TTL,
      wait_seconds: operation === "acquire" ? this.wait : 0,
      ...more,
    };
    writeSync(records, `${JSON.stringify(record)}\n`);
  }
}

function outcomeOf(operation, error) {
  if (error instanceof LockHeldError) return "held";
  if (error instanceof LockOwnershipLostError) return operation === "release" ? "refused" : "lost";
  if (error instanceof TransportError || error instanceof UnavailableError) return "unknown";
  throw error;
}

async function work(locks, name) {
  for (let number = 1; !isStopping; number++) {
    await new Job(locks, `${name}#${number}`).run();
    await sleep(Math.random() * settings.pause_seconds * 1000);
  }
}

const locks = new Client({ timeoutSeconds: settings.timeout_seconds }).locks.throwOnError();
process.stdin.on("data", () => {}).on("end", () => (isStopping = true));
await Promise.all(Array.from({ length: settings.tasks }, (_, number) => work(locks, `${settings.name}.${number}`)));
process.exit(0);
