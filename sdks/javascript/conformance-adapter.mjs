/**
 * The conformance adapter: runs this client as a target of the scenario suite. It reads one verb per line from standard
 * input and writes one result per line to standard output.
 *
 *     → {"verb": "open", "args": {"service_key": "sk-…"}}                                           ← {"answer": {}}
 *     → {"verb": "client", "args": {"actor": "ann", "api_url": "http://127.0.0.1:40123"}}        ← {"answer": {}}
 *     → {"verb": "acquire", "args": {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": null}}
 *     ← {"answer": {"expires_at_ms": 1767225630000, "fencing_token": 1767225600000}}
 *     → {"verb": "advance_ms", "args": {"value": 600000}}
 *     ← {"move_seconds": 10.1}    → {"moved": true}    … repeated at each timer on the way …    ← {"answer": {}}
 *     → {"verb": "close", "args": {}}                                                             ← {"answer": {}}
 *
 * conformance/README.md describes the protocol; the verbs of server and network (`restart`, `outage`) do not
 * arrive here. With `{"fake": true}` the adapter opens the fake server that the client ships (SDK-10).
 *
 * It uses only the exports of the built package: run `npm run build` first.
 */

import { readSync, writeSync } from "node:fs";
import { Client, LockHeldError, ServerError, TransportError, VolcanoError } from "volcano-locks";
import { FAKE_SERVICE_KEY, FAKE_URL, FakeLocks, ManualClock } from "volcano-locks/testing";

const ANOTHER_KEY = "another-key";
const TURNS = 8;
const FOREVER = "forever";
const POLL_MS = 1;
const ARRIVAL_MS_MAX = 10_000;
const RESULT = "the function's result";

// --- input and output ---

const chunk = Buffer.alloc(65_536);
let unread = "";

/** The next line, or null at the end. Blocks the process, so that nothing runs while the runner prepares the next verb. */
function nextLine() {
  for (;;) {
    const end = unread.indexOf("\n");
    if (end >= 0) {
      const line = unread.slice(0, end);
      unread = unread.slice(end + 1);
      return line;
    }
    const bytes = readSync(0, chunk);
    if (bytes === 0) return null;
    unread += chunk.toString("utf8", 0, bytes);
  }
}

function writeLine(message) {
  writeSync(1, `${JSON.stringify(message)}\n`);
}

// --- time ---

/**
 * The clock shared with a real server. It also stops at the server's timers. It moves on when this process is idle,
 * the runner reports an idle network, and nothing was exchanged in between.
 */
class SharedClock extends ManualClock {
  #exchanged = 0;
  #serverDue = Number.POSITIVE_INFINITY;

  constructor() {
    super({ onMove: askToMove });
  }

  nextDue() {
    return Math.min(super.nextDue(), this.#serverDue);
  }

  async settle() {
    for (;;) {
      await eventLoopTurns();
      await super.settle();
      writeLine({ look: true });
      const { at_rest: atRest, exchanged, next_due_seconds: seconds } = JSON.parse(nextLine());
      this.#serverDue = seconds === null ? Number.POSITIVE_INFINITY : this.now() + seconds;
      if (atRest && exchanged === this.#exchanged) return;
      this.#exchanged = exchanged;
    }
  }
}

async function eventLoopTurns() {
  for (let turn = 0; turn < TURNS; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

function askToMove(seconds) {
  writeLine({ move_seconds: seconds });
  nextLine();
}

function pauseMs(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Resolves when `condition` holds, or after a limit of real time. */
async function until(condition) {
  const timeoutAt = performance.now() + ARRIVAL_MS_MAX;
  while (!condition() && performance.now() < timeoutAt) await pauseMs(POLL_MS);
}

// --- blocks ---

class BodyError extends Error {}

/** A `withLock` whose body runs until the scenario ends it. */
class Block {
  stopped = false;
  cancelled = new AbortController();

  constructor(locks, { key, ttl_seconds: ttl, token, wait_seconds, hold_at_least_seconds, renew_every_seconds }) {
    const times = { holdAtLeast: hold_at_least_seconds, renewEvery: renew_every_seconds };
    const options = optional({ token, wait: secondsOf(wait_seconds), ...times });
    const entered = new Promise((resolve) => {
      this.result = locks.withLock(key, { ...options, ttl, signal: this.cancelled.signal }, (guard) => {
        this.guard = guard;
        resolve();
        return this.#body(guard);
      });
    });
    this.entered = Promise.race([entered, this.result]);
  }

  #body({ signal }) {
    return new Promise((resolve, reject) => {
      this.end = (how) => (how === "raises" ? reject(new BodyError("the body's own error")) : resolve());
      signal.addEventListener("abort", () => {
        this.stopped = true;
        reject(signal.reason);
      });
    });
  }

  /** Ends the body and returns how `withLock` ended. */
  async leave(how) {
    if (how === "cancelled") this.cancelled.abort(new Error("cancelled from outside"));
    else this.end(how);
    const { error } = await this.result;
    const attached = optional({ attached: error?.suppressed?.[0]?.name });
    if (error instanceof BodyError) return { error: "body", ...attached };
    if (error !== null && error === this.cancelled.signal.reason) return { error: "cancelled", ...attached };
    return error === null ? {} : failure(error);
  }
}

// --- waits ---

/** An acquire that waits while other actors act. */
class BackgroundWait {
  #cancelled = new AbortController();
  result = null;

  constructor(acquire) {
    this.ended = acquire(this.#cancelled.signal).then((result) => {
      this.result = result;
    });
  }

  hangUp() {
    this.#cancelled.abort(new Error("cancelled from outside"));
  }
}

// --- watching and leading ---

/** A `watch` that runs while other actors act. */
class BackgroundWatch {
  seen = [];
  error = null;

  constructor(changes) {
    this.changes = changes;
    this.ended = this.#follow().catch((error) => {
      this.error = error;
    });
  }

  async #follow() {
    for await (const change of this.changes) this.seen.push(change);
  }
}

/** A `lead` whose function runs until the scenario ends it. */
class Campaign {
  starts = 0;
  ends = 0;
  fencingToken = null;
  #stopped = new AbortController();

  constructor(locks, { key, ttl_seconds: ttl }) {
    const { signal } = this.#stopped;
    this.result = locks.lead(key, { ttl, signal }, (guard) => this.#run(guard));
  }

  async #run(guard) {
    if (this.starts !== this.ends) throw new Error("two runs of one campaign overlap");
    if (guard.lost) throw new Error("the function started with a lost lease");
    this.starts += 1;
    this.fencingToken = guard.lease.fencingToken;
    try {
      return await new Promise((resolve, reject) => {
        this.end = (how) => (how === "raises" ? reject(new BodyError("the function's own error")) : resolve(RESULT));
        guard.signal.addEventListener("abort", () => reject(guard.signal.reason));
      });
    } finally {
      this.ends += 1;
    }
  }

  stop() {
    this.#stopped.abort(new Error("cancelled from outside"));
  }

  /** Ends the campaign and returns how `lead` ended. */
  async resign(how) {
    if (how === "cancelled") this.stop();
    else this.end(how);
    const { data, error } = await this.result;
    if (error instanceof BodyError) return { error: "body" };
    const { reason } = this.#stopped.signal;
    if (error !== null && (error === reason || error.cause === reason)) return { error: "cancelled" };
    if (error === null && data !== RESULT) throw new Error(`lead resolved with ${data}`);
    return error === null ? {} : failure(error);
  }
}

// --- the target ---

class Target {
  #clients = new Map();
  #leases = new Map();
  #blocks = new Map();
  #waits = new Map();
  #watches = new Map();
  #campaigns = new Map();

  open({ fake = false, service_key: serviceKey = FAKE_SERVICE_KEY }) {
    this.clock = fake ? new ManualClock() : new SharedClock();
    this.options = { clock: this.clock, serviceKey };
    if (fake) Object.assign(this.options, { apiUrl: FAKE_URL, fetch: new FakeLocks(this.clock).fetch });
    return {};
  }

  client({ actor, api_url: apiUrl }) {
    this.#clients.set(actor, new Client({ ...this.options, ...optional({ apiUrl }), holder: actor }));
    return {};
  }

  now_ms() {
    return { now_ms: this.clock.utcNow().getTime() };
  }

  async advance_ms({ value }) {
    await this.clock.advance(value / 1_000);
    return {};
  }

  async pause_ms({ value }) {
    this.clock.jump(value / 1_000);
    await this.clock.settle();
    return {};
  }

  async acquire(args) {
    const result = await this.#blocking(this.#acquire(args));
    const answer = result.acquired ? leaseFields(result.lease) : failureOfAcquire(result);
    return "spelling" in args ? { ...answer, ids_kept: idsKept(args, result) } : answer;
  }

  async wait(args) {
    this.#waits.set(idOf(args), new BackgroundWait((signal) => this.#acquire(args, signal)));
    await this.clock.settle();
    return {};
  }

  async waited(args) {
    await this.clock.settle();
    const { result } = this.#waits.get(idOf(args));
    if (result === null) return { pending: true };
    return result.acquired ? leaseFields(result.lease) : failureOfAcquire(result);
  }

  async hang_up(args) {
    const wait = this.#waits.get(idOf(args));
    wait.hangUp();
    await this.#blocking(wait.ended);
    return {};
  }

  async watch(args) {
    const watch = new BackgroundWatch(this.#locks(args.actor).watch(args.key));
    this.#watches.set(idOf(args), watch);
    await until(() => watch.seen.length > 0 || watch.error !== null);
    await this.clock.settle();
    return {};
  }

  async watched(args) {
    await this.clock.settle();
    const watch = this.#watches.get(idOf(args));
    await until(() => watch.seen.length >= (args.count ?? 0) || watch.error !== null);
    if (watch.error !== null) return failure(watch.error);
    return { changes: watch.seen.splice(0).map(changeFields) };
  }

  async lead(args) {
    this.#campaigns.set(idOf(args), new Campaign(this.#locks(args.actor), args));
    await this.clock.settle();
    return {};
  }

  async leading(args) {
    await this.clock.settle();
    const campaign = this.#campaigns.get(idOf(args));
    await until(() => campaign.starts >= (args.starts ?? 0) && campaign.ends >= (args.ends ?? 0));
    await this.clock.settle();
    const { starts, ends, fencingToken } = campaign;
    return { starts, ends, ...optional({ fencing_token: fencingToken }) };
  }

  resign(args) {
    return this.#blocking(this.#campaigns.get(idOf(args)).resign(args.body ?? "returns"));
  }

  async call({ actor, key, ttl_seconds: ttl, on_held: onHeld, hold_at_least_seconds: holdAtLeast, body }) {
    const outcome = { ran: false };
    const options = { ttl, onHeld, holdAtLeast, passGuard: true };
    const run = this.#locks(actor).exclusive(
      (name) => name,
      options,
      (_name, guard) => {
        Object.assign(outcome, { ran: true, fencing_token: guard.lease.fencingToken });
        if (body === "raises") throw new BodyError("the function's own error");
      },
    );
    try {
      await this.#blocking(run(key));
    } catch (error) {
      return error instanceof BodyError ? { error: "body" } : failure(error);
    }
    return outcome;
  }

  /** A block whose body enters another one on the same key: the result of the inner block. */
  async nest({ actor, key, ttl_seconds: ttl, wait_seconds: wait }) {
    const locks = this.#locks(actor);
    const outer = locks.withLock(key, { ttl }, async (guard) => {
      const inner = await locks.withLock(key, { ttl, ...optional({ wait }) }, () => {});
      return { ...(inner.acquired && inner.error === null ? {} : failureOfAcquire(inner)), lost: guard.lost };
    });
    const { data, error } = await this.#blocking(outer);
    return error === null ? data : failure(error);
  }

  /** Ends background watches and campaigns. */
  async close() {
    for (const { changes } of this.#watches.values()) await changes.return();
    for (const campaign of this.#campaigns.values()) {
      campaign.stop();
      await campaign.result;
    }
    return {};
  }

  async view({ actor, key }) {
    const { view, error } = await this.#blocking(this.#locks(actor).view(key));
    if (error !== null) return failure(error);
    const { held, holder, fencingToken, ttlSeconds, waiters } = view;
    return {
      held,
      holder,
      fencing_token: fencingToken,
      ttl_seconds: ttlSeconds,
      waiters,
      ...optional({
        acquired_at_ms: view.acquiredAt?.getTime(),
        renewed_at_ms: view.renewedAt?.getTime(),
        expires_at_ms: view.expiresAt?.getTime(),
      }),
    };
  }

  async history({ actor, key }) {
    const holds = async () => {
      const found = [];
      for await (const { holder, ended } of this.#locks(actor).history(key)) found.push(`${holder} ${ended ?? "held"}`);
      return found;
    };
    try {
      return { holds: await this.#blocking(holds()) };
    } catch (error) {
      return failure(error);
    }
  }

  async list({ actor, prefix, state }) {
    const keys = async () => {
      const found = [];
      for await (const { key } of this.#locks(actor).list(prefix, { state })) found.push(key);
      return found;
    };
    try {
      return { keys: await this.#blocking(keys()) };
    } catch (error) {
      return failure(error);
    }
  }

  async renew(args) {
    const renewed = await this.#asOwner(args, (locks, key, lease) =>
      locks.renew(key, lease, { ttl: args.ttl_seconds }),
    );
    if (renewed.error !== null) return failure(renewed.error);
    this.#leases.set(args.lease, renewed.lease);
    return leaseFields(renewed.lease);
  }

  async release(args) {
    return emptyOrFailure(await this.#asOwner(args, (locks, key, lease) => locks.release(key, lease)));
  }

  /** Calls a verb of a lease's owner. With `given` the call is invalid, and a TypeError or RangeError is its result. */
  async #asOwner({ actor, key, lease: name, given }, verb) {
    const lease = given === "no_lease" ? { ttl: 30 } : this.#leases.get(name);
    const call = verb(this.#locks(actor), given === "another_key" ? ANOTHER_KEY : key, lease);
    try {
      return await this.#blocking(call);
    } catch (error) {
      if (given !== undefined && (error instanceof TypeError || error instanceof RangeError)) return { error };
      throw error;
    }
  }

  async force_release({ actor, key, fencing_token: fencingToken, reason }) {
    return emptyOrFailure(await this.#blocking(this.#locks(actor).forceRelease(key, { fencingToken, reason })));
  }

  async get({ actor, key }) {
    const { state, error } = await this.#blocking(this.#locks(actor).get(key));
    if (error !== null) return failure(error);
    return state.held ? { held: true, ...leaseFields(state) } : { held: false };
  }

  async race({ key, ttl_seconds: ttl, tokens, wait_seconds }) {
    const locks = this.#locks("racers");
    const wait = secondsOf(wait_seconds);
    const results = await this.#blocking(Promise.all(tokens.map((token) => locks.acquire(key, { ttl, token, wait }))));
    const granted = results.filter((one) => one.acquired);
    const codes = results.filter((one) => !one.acquired).map((one) => failureOfAcquire(one).error);
    const refused = Object.fromEntries(codes.map((code) => [code, codes.filter((other) => other === code).length]));
    return { granted: granted.length, refused, ...(granted.length > 0 ? leaseFields(granted[0].lease) : {}) };
  }

  async enter(args) {
    const block = new Block(this.#locks(args.actor), args);
    const ended = await this.#blocking(block.entered);
    if (ended !== undefined) return failureOfAcquire(ended);
    this.#blocks.set(idOf(args), block);
    return this.guard(args);
  }

  guard(args) {
    const { guard, stopped } = this.#blocks.get(idOf(args));
    return { lost: guard.lost, stopped, ...leaseFields(guard.lease) };
  }

  exit(args) {
    return this.#blocking(this.#blocks.get(idOf(args)).leave(args.body ?? "returns"));
  }

  async #acquire(args, signal) {
    const { actor, key, ttl_seconds: ttl, lease: name, token, request_id, wait_seconds, spelling, throws } = args;
    const owner = spelling === undefined ? (this.#leases.get(name)?.token ?? token) : token;
    const options = optional({ token: owner, requestId: request_id, wait: secondsOf(wait_seconds), signal });
    const locks = this.#locks(actor);
    const result = throws
      ? await resultOf(locks.throwOnError().acquire(key, { ...options, ttl }))
      : await locks.acquire(key, { ...options, ttl });
    if (result.lease !== null) this.#leases.set(name, result.lease);
    return result;
  }

  /** Advances the clock until `work` ends: the runner waits for the result, so it cannot do this. */
  async #blocking(work) {
    let ended = false;
    const result = Promise.resolve(work).finally(() => {
      ended = true;
    });
    result.catch(() => {});
    for (;;) {
      await this.clock.settle();
      if (ended) return result;
      if (this.clock.nextDue() === Number.POSITIVE_INFINITY) throw new Error("the call waits, but no timer is pending");
      await this.clock.advance(this.clock.nextDue() - this.clock.now());
    }
  }

  #locks(actor) {
    return this.#clients.get(actor).locks;
  }
}

function secondsOf(seconds) {
  return seconds === FOREVER ? Number.POSITIVE_INFINITY : seconds;
}

function leaseFields({ expiresAt, fencingToken }) {
  return { expires_at_ms: expiresAt.getTime(), fencing_token: fencingToken };
}

function changeFields({ held, holder, fencingToken, since }) {
  return { held, holder, fencing_token: fencingToken, at_ms: since?.getTime() ?? null };
}

/** The envelope of an acquire that resolves with its lease and rejects with its error. */
async function resultOf(acquiring) {
  try {
    return { acquired: true, lease: await acquiring, error: null };
  } catch (error) {
    return { acquired: false, lease: null, error };
  }
}

function emptyOrFailure({ error }) {
  return error === null ? {} : failure(error);
}

function failureOfAcquire({ error, reason }) {
  return error === null ? { error: reason } : failure(error);
}

function failure(error) {
  const details = { retry_after_seconds: error.retryAfter, error_classes: classesOf(error) };
  return { error: codeOf(error), ...optional(details), ...(error instanceof LockHeldError ? holderFields(error) : {}) };
}

function holderFields({ holder = null, expiresAt = null, fencingToken = null }) {
  return { holder, expires_at_ms: expiresAt?.getTime() ?? null, fencing_token: fencingToken };
}

function codeOf(error) {
  if (error instanceof TransportError) return "no_answer";
  if (error instanceof VolcanoError && error.code !== null) return error.code;
  if (error instanceof ServerError) return "bad_answer";
  if (error instanceof TypeError || error instanceof RangeError) return "argument";
  throw error;
}

/** The names of the error's class and its base classes. */
function classesOf(error) {
  const names = [];
  for (let one = Object.getPrototypeOf(error); one !== Object.prototype; one = Object.getPrototypeOf(one)) {
    names.push(one.constructor.name);
  }
  return names;
}

/** Whether the lease and the error keep the caller's spelling of the ids. */
function idsKept({ token, request_id: requestId }, { lease, error }) {
  return (lease === null || lease.token === token) && (error === null || error.requestId === requestId);
}

function idOf({ actor, key }) {
  return `${actor} ${key}`;
}

/** Drops undefined and null fields. */
function optional(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}

// --- the main loop ---

const unhandled = [];
process.on("unhandledRejection", (reason) => unhandled.push(`unhandled rejection: ${reason?.stack ?? reason}`));
process.on("uncaughtException", (error) => unhandled.push(`uncaught: ${error.stack}`));

async function perform(target, { verb, args }) {
  try {
    if (verb.startsWith("#") || typeof target[verb] !== "function") return { crash: `unknown verb ${verb}` };
    const result = await target[verb](args);
    if (verb === "close" && unhandled.length > 0) return { crash: unhandled.join("\n") };
    return { answer: result };
  } catch (error) {
    return { crash: error.stack };
  }
}

let target = new Target();
for (;;) {
  const line = nextLine();
  if (line === null) break; // the process must exit by itself now
  const request = JSON.parse(line);
  if (request.verb === "open") target = new Target();
  await eventLoopTurns(); // connections that the server has closed are noticed now
  writeLine(await perform(target, request));
}
