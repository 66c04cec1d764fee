/**
 * This client as a face of the conformance book: a process that is told one verb a line and answers one line each.
 *
 *     → {"verb": "open", "args": {"api_url": "http://127.0.0.1:7420", "service_key": "sk-…"}}    ← {"answer": {}}
 *     → {"verb": "acquire", "args": {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": null}}
 *     ← {"answer": {"expires_at_ms": 1767225630000, "fencing_token": 1767225600000}}
 *     → {"verb": "advance_ms", "args": {"value": 600000}}
 *     ← {"move_seconds": 10.1}    → {"moved": true}    … as often as time stops on the way …    ← {"answer": {}}
 *     → {"verb": "close", "args": {}}                                                             ← {"answer": {}}
 *
 * The protocol is told in conformance/README.md: verbs, arguments and answers are those of the client's side there; the
 * server's own (`restart`, `purge`) are its owner's. `{"fake": true}` instead of an address opens the fake that the
 * client ships (SDK-10).
 *
 * It uses what the built package exports and nothing else: `npm run build` first.
 */

import { readSync, writeSync } from "node:fs";
import { Client, ServerError, TransportError, VolcanoError } from "volcano-locks";
import { FAKE_SERVICE_KEY, FAKE_URL, FakeLocks, ManualClock } from "volcano-locks/testing";

const OPERATIONS = {
  "POST lease": "acquire",
  "PATCH lease": "renew",
  "DELETE lease": "release",
  "GET lock": "get",
  "DELETE lock": "force_release",
};
const STREAM = "stream";
const STREAM_TYPE = "text/event-stream";
const KINDS = [...Object.values(OPERATIONS), STREAM];
const ANSWERS = {
  answer_503: [503, "lock_service_unavailable"],
  answer_403: [403, "missing_permission"],
  answer_500: [500, "internal"],
  answer_429: [429, "lock_rate_limited"],
};
const RETRY_AFTER_STATUSES = new Set([429, 503]);
const ANOTHER_KEY = "another-key";
const TURNS_BETWEEN_VERBS = 8;
const FOREVER = "forever";
const AGAIN_MS = 1;
const ARRIVAL_MS_MAX = 10_000;
const RESULT = "the function's result";

// --- lines -------------------------------------------------------------------------------------------------

const chunk = Buffer.alloc(65_536);
let unread = "";

/** The next line, or null at the end. Blocks, so that nothing goes on while the one who asks is thinking. */
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

function say(message) {
  writeSync(1, `${JSON.stringify(message)}\n`);
}

// --- time --------------------------------------------------------------------------------------------------

/**
 * The clock over a real server. Once a request has waited in a line there, time stops for what is due at the server too,
 * and goes on when the server is at rest: when all that is under way waits.
 */
class SharedClock extends ManualClock {
  waits = false;
  #underWay = 0;
  #serverDue = Number.POSITIVE_INFINITY;

  constructor() {
    super({ onMove: askToMove });
  }

  nextDue() {
    return Math.min(super.nextDue(), this.#serverDue);
  }

  async settle() {
    for (;;) {
      await super.settle();
      if (!this.waits) return;
      say({ under_way: this.#underWay });
      const { at_rest: atRest, next_due_seconds: seconds } = JSON.parse(nextLine());
      this.#serverDue = seconds === null ? Number.POSITIVE_INFINITY : this.now() + seconds;
      if (atRest) return;
      await pauseMs(AGAIN_MS);
    }
  }

  /** One more request is under way, until `work` ends. */
  async sending(work) {
    this.#underWay += 1;
    try {
      return await work;
    } finally {
      this.#underWay -= 1;
    }
  }
}

function askToMove(seconds) {
  say({ move_seconds: seconds });
  nextLine();
}

function pauseMs(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Resolves once it is so, or real time is over. */
async function until(isSo) {
  const giveUp = performance.now() + ARRIVAL_MS_MAX;
  while (!isSo() && performance.now() < giveUp) await pauseMs(AGAIN_MS);
}

// --- the network -------------------------------------------------------------------------------------------

/** Trouble that the scenario tells of, shared by all actors. */
class Outages {
  #told = [];

  tell({ kind, count = Number.POSITIVE_INFINITY, of = KINDS, actor = null, ...more }) {
    this.#told.push({ kind, left: count, of, actor, ...more });
  }

  end() {
    this.#told = [];
  }

  striking(operation, actor) {
    const fits = (one) => one.left > 0 && one.of.includes(operation) && (one.actor ?? actor) === actor;
    const outage = this.#told.find(fits);
    if (outage !== undefined) outage.left -= 1;
    return outage ?? { kind: "none" };
  }
}

/** One actor's way to the server. Time on the way is waited for on the clock. */
class Network {
  sent = [];
  #streams = new Set();

  constructor(actor, inner, clock, outages) {
    Object.assign(this, { actor, inner, clock, outages });
  }

  fetch = async (url, init) => {
    const place = new URL(url).pathname.endsWith("/lease") ? "lease" : "lock";
    const headers = new Headers(init.headers);
    const operation = isStream(headers) ? STREAM : OPERATIONS[`${init.method} ${place}`];
    const ids = { token: headers.get("X-Volcano-Lock-Token"), requestId: headers.get("X-Volcano-Request-Id") };
    this.sent.push({ operation, ...ids });
    const outage = this.outages.striking(operation, this.actor);
    if (outage.kind === "answer_page") {
      return new Response("<html>Bad Gateway</html>", { status: 502, headers: { "Content-Type": "text/html" } });
    }
    if (outage.kind === "answer_503_empty") return new Response(null, { status: 503 });
    if (outage.kind in ANSWERS) return scripted(outage);
    if (outage.kind === "drop_before") throw failed("ECONNREFUSED");
    if (outage.kind === "reset") throw failed("ECONNRESET");
    if (outage.kind === "hang_before") await this.#never(init);
    if (outage.kind === "delay_before") await this.#later(outage, init);
    let response = await this.#served(url, init);
    if (outage.kind === "duplicate") response = await this.#served(url, init);
    if (outage.kind === "altered") response = await altered(response, outage.answer);
    if (outage.kind === "drop_after") throw failed("ECONNRESET");
    if (outage.kind === "hang_after") await this.#never(init);
    if (outage.kind === "delay_after") await this.#later(outage, init);
    return response;
  };

  /** Break the connections of all streams. */
  cut() {
    for (const stream of this.#streams) stream.cut();
  }

  #served(url, init) {
    if (isStream(new Headers(init.headers))) return this.clock.track(this.#sending(this.#begun(url, init)));
    const whole = async () => {
      const response = await this.inner(url, init);
      const text = await response.text();
      return new Response(text === "" ? null : text, { status: response.status, headers: response.headers });
    };
    if (!waits(init)) return this.clock.track(this.#sending(whole()));
    this.clock.waits = true;
    return this.#sending(whole());
  }

  /** A stream, which is under way until it has begun. */
  async #begun(url, init) {
    this.clock.waits = true;
    const response = await this.inner(url, init);
    const { status, headers } = response;
    if (headers.get("Content-Type") !== STREAM_TYPE) return new Response(await response.text(), { status, headers });
    const stream = new Followed(response.body, () => this.#streams.delete(stream));
    this.#streams.add(stream);
    return new Response(stream.body, { status, headers });
  }

  #sending(work) {
    return this.clock instanceof SharedClock ? this.clock.sending(work) : work;
  }

  #never({ signal }) {
    return new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  }

  async #later({ delay_ms: ms }, init) {
    const due = new Promise((resolve) => this.clock.at(this.clock.now() + ms / 1_000, resolve));
    await Promise.race([due, this.#never(init)]);
  }
}

/** A stream that was begun, until its connection is cut. */
class Followed {
  constructor(bytes, onEnd) {
    const reader = bytes.getReader();
    const broken = new Promise((_, reject) => {
      this.cut = () => reject(failed("ECONNRESET"));
    });
    broken.catch(onEnd);
    const end = () => {
      onEnd();
      return reader.cancel().catch(() => {});
    };
    const pull = async (controller) => {
      try {
        const { done, value } = await Promise.race([reader.read(), broken]);
        if (!done) return controller.enqueue(value);
        controller.close();
      } catch (error) {
        controller.error(error);
      }
      await end();
    };
    this.body = new ReadableStream({ pull, cancel: end }, { highWaterMark: 0 });
  }
}

function isStream(headers) {
  return headers.get("Accept") === STREAM_TYPE;
}

function waits({ body }) {
  return typeof body === "string" && "wait_seconds" in JSON.parse(body);
}

/** An answer whose fields are others. */
async function altered(response, fields) {
  const { status } = response;
  return Response.json({ ...(await response.json()), ...fields }, { status });
}

function scripted({ kind, retry_after_seconds: seconds = 1 }) {
  const [status, code] = ANSWERS[kind];
  const headers = RETRY_AFTER_STATUSES.has(status) ? { "Retry-After": String(seconds) } : {};
  return Response.json({ error: "this answer was scripted", code }, { status, headers });
}

function failed(code) {
  return new TypeError("fetch failed", { cause: Object.assign(new Error("scripted"), { code }) });
}

// --- blocks ------------------------------------------------------------------------------------------------

class BodyError extends Error {}

/** A `withLock` whose body waits to be ended. */
class Block {
  stopped = false;
  cancelled = new AbortController();

  constructor(locks, { key, ttl_seconds: ttl, token, wait_seconds, hold_at_least_seconds: holdAtLeast }) {
    const options = optional({ token, wait: secondsOf(wait_seconds), holdAtLeast });
    const entered = new Promise((resolve) => {
      this.result = locks.withLock(key, { ...options, ttl, signal: this.cancelled.signal }, (guard) => {
        this.guard = guard;
        resolve();
        return this.#body(guard);
      });
    });
    this.begun = Promise.race([entered, this.result]);
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

  /** How `withLock` ended. */
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

// --- waits -------------------------------------------------------------------------------------------------

/** An acquire that waits while others act. */
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

// --- watching and leading ----------------------------------------------------------------------------------

/** A `watch` that goes on while others act. */
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

/** A `lead` whose function runs until it is told to end. */
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
    if (guard.lost) throw new Error("the function starts with a lease that is lost");
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

  /** How it ended, once it has been told to. */
  async resigned(how) {
    if (how === "cancelled") this.stop();
    else this.end(how);
    const { data, error } = await this.result;
    if (error instanceof BodyError) return { error: "body" };
    const { reason } = this.#stopped.signal;
    if (error !== null && (error === reason || error.cause === reason)) return { error: "cancelled" };
    if (error === null && data !== RESULT) throw new Error(`lead gives ${data}`);
    return error === null ? {} : failure(error);
  }
}

// --- the face ----------------------------------------------------------------------------------------------

class Face {
  #clients = new Map();
  #networks = new Map();
  #leases = new Map();
  #blocks = new Map();
  #waits = new Map();
  #watches = new Map();
  #campaigns = new Map();
  #outages = new Outages();

  open({ fake = false, api_url: apiUrl = FAKE_URL, service_key: serviceKey = FAKE_SERVICE_KEY }) {
    this.clock = fake ? new ManualClock() : new SharedClock();
    this.address = { apiUrl, serviceKey };
    const server = fake ? new FakeLocks(this.clock) : null;
    this.inner = server?.fetch ?? ((url, init) => fetch(url, init));
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

  outage(args) {
    this.#outages.tell(args);
    return {};
  }

  outage_ends() {
    this.#outages.end();
    return {};
  }

  sent({ actor }) {
    const { sent } = this.#network(actor);
    const count = (operation) => [operation, sent.filter((one) => one.operation === operation).length];
    const told = Object.fromEntries(KINDS.map(count));
    const tokens = new Set(sent.map((one) => one.token).filter((token) => token !== null));
    const requestIds = new Set(sent.map((one) => one.requestId));
    sent.length = 0;
    return { ...told, tokens: tokens.size, request_ids: requestIds.size };
  }

  async acquire(args) {
    const result = await this.#blocking(this.#acquire(args));
    const answer = result.acquired ? shown(result.lease) : failureOfAcquire(result);
    return "spelling" in args ? { ...answer, ids_kept: idsKept(args, result) } : answer;
  }

  async wait(args) {
    this.#waits.set(placeOf(args), new BackgroundWait((signal) => this.#acquire(args, signal)));
    await this.clock.settle();
    return {};
  }

  async waited(args) {
    await this.clock.settle();
    const { result } = this.#waits.get(placeOf(args));
    if (result === null) return { pending: true };
    return result.acquired ? shown(result.lease) : failureOfAcquire(result);
  }

  async hang_up(args) {
    const wait = this.#waits.get(placeOf(args));
    wait.hangUp();
    await this.#blocking(wait.ended);
    return {};
  }

  async watch(args) {
    const watch = new BackgroundWatch(this.#locks(args.actor).watch(args.key));
    this.#watches.set(placeOf(args), watch);
    await until(() => watch.seen.length > 0 || watch.error !== null);
    await this.clock.settle();
    return {};
  }

  async watched(args) {
    await this.clock.settle();
    const watch = this.#watches.get(placeOf(args));
    await until(() => watch.seen.length >= (args.count ?? 0) || watch.error !== null);
    if (watch.error !== null) return failure(watch.error);
    return { changes: watch.seen.splice(0).map(changeTold) };
  }

  async cut({ actor }) {
    this.#network(actor).cut();
    await this.clock.settle();
    return {};
  }

  async lead(args) {
    this.#campaigns.set(placeOf(args), new Campaign(this.#locks(args.actor), args));
    await this.clock.settle();
    return {};
  }

  async leading(args) {
    await this.clock.settle();
    const campaign = this.#campaigns.get(placeOf(args));
    await until(() => campaign.starts >= (args.starts ?? 0) && campaign.ends >= (args.ends ?? 0));
    await this.clock.settle();
    const { starts, ends, fencingToken } = campaign;
    return { starts, ends, ...optional({ fencing_token: fencingToken }) };
  }

  resign(args) {
    return this.#blocking(this.#campaigns.get(placeOf(args)).resigned(args.body ?? "returns"));
  }

  async call({ actor, key, ttl_seconds: ttl, on_held: onHeld, hold_at_least_seconds: holdAtLeast, body }) {
    const told = { ran: false };
    const options = { ttl, onHeld, holdAtLeast, passGuard: true };
    const run = this.#locks(actor).exclusive(
      (name) => name,
      options,
      (_name, guard) => {
        Object.assign(told, { ran: true, fencing_token: guard.lease.fencingToken });
        if (body === "raises") throw new BodyError("the function's own error");
      },
    );
    try {
      await this.#blocking(run(key));
    } catch (error) {
      return error instanceof BodyError ? { error: "body" } : failure(error);
    }
    return told;
  }

  /** End what goes on by itself. */
  async close() {
    this.#outages.end();
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
    const asked = await this.#owning(args, (locks, key, lease) => locks.renew(key, lease, { ttl: args.ttl_seconds }));
    if (asked.error !== null) return failure(asked.error);
    this.#leases.set(args.lease, asked.lease);
    return shown(asked.lease);
  }

  async release(args) {
    return told(await this.#owning(args, (locks, key, lease) => locks.release(key, lease)));
  }

  /** What `ask` resolves with. With `given` the call is wrong, and the language's own error for that is an answer too. */
  async #owning({ actor, key, lease: name, given }, ask) {
    const lease = given === "no_lease" ? { ttl: 30 } : this.#leases.get(name);
    const asked = ask(this.#locks(actor), given === "another_key" ? ANOTHER_KEY : key, lease);
    try {
      return await this.#blocking(asked);
    } catch (error) {
      if (given !== undefined && (error instanceof TypeError || error instanceof RangeError)) return { error };
      throw error;
    }
  }

  async force_release({ actor, key }) {
    return told(await this.#blocking(this.#locks(actor).forceRelease(key)));
  }

  async get({ actor, key }) {
    const { state, error } = await this.#blocking(this.#locks(actor).get(key));
    if (error !== null) return failure(error);
    return state.held ? { held: true, ...shown(state) } : { held: false };
  }

  async race({ key, ttl_seconds: ttl, tokens, wait_seconds }) {
    const locks = this.#locks("racers");
    const wait = secondsOf(wait_seconds);
    const results = await this.#blocking(Promise.all(tokens.map((token) => locks.acquire(key, { ttl, token, wait }))));
    const granted = results.filter((one) => one.acquired);
    const codes = results.filter((one) => !one.acquired).map((one) => failureOfAcquire(one).error);
    const refused = Object.fromEntries(codes.map((code) => [code, codes.filter((other) => other === code).length]));
    return { granted: granted.length, refused, ...(granted.length > 0 ? shown(granted[0].lease) : {}) };
  }

  async enter(args) {
    const block = new Block(this.#locks(args.actor), args);
    const ended = await this.#blocking(block.begun);
    if (ended !== undefined) return failureOfAcquire(ended);
    this.#blocks.set(placeOf(args), block);
    return this.guard(args);
  }

  guard(args) {
    const { guard, stopped } = this.#blocks.get(placeOf(args));
    return { lost: guard.lost, stopped, ...shown(guard.lease) };
  }

  exit(args) {
    return this.#blocking(this.#blocks.get(placeOf(args)).leave(args.body ?? "returns"));
  }

  async #acquire({ actor, key, ttl_seconds: ttl, lease: name, token, request_id, wait_seconds, spelling }, signal) {
    const owner = spelling === undefined ? (this.#leases.get(name)?.token ?? token) : token;
    const options = optional({ token: owner, requestId: request_id, wait: secondsOf(wait_seconds), signal });
    const result = await this.#locks(actor).acquire(key, { ...options, ttl });
    if (result.lease !== null) this.#leases.set(name, result.lease);
    return result;
  }

  /** `work` that somebody waits for: time goes by until it is over, since nobody else would move it. */
  async #blocking(work) {
    let over = false;
    const watched = Promise.resolve(work).finally(() => {
      over = true;
    });
    watched.catch(() => {});
    for (;;) {
      await this.clock.settle();
      if (over) return watched;
      if (this.clock.nextDue() === Number.POSITIVE_INFINITY) throw new Error("waits for nothing that will come");
      await this.clock.advance(this.clock.nextDue() - this.clock.now());
    }
  }

  #network(actor) {
    const known = this.#networks.get(actor) ?? new Network(actor, this.inner, this.clock, this.#outages);
    this.#networks.set(actor, known);
    return known;
  }

  #locks(actor) {
    const { clock } = this;
    const { fetch } = this.#network(actor);
    const known = this.#clients.get(actor) ?? new Client({ ...this.address, clock, fetch, holder: actor });
    this.#clients.set(actor, known);
    return known.locks;
  }
}

function secondsOf(seconds) {
  return seconds === FOREVER ? Number.POSITIVE_INFINITY : seconds;
}

function shown({ expiresAt, fencingToken }) {
  return { expires_at_ms: expiresAt.getTime(), fencing_token: fencingToken };
}

function changeTold({ held, holder, fencingToken, since }) {
  return { held, holder, fencing_token: fencingToken, at_ms: since?.getTime() ?? null };
}

function told({ error }) {
  return error === null ? {} : failure(error);
}

function failureOfAcquire({ error, reason }) {
  return error === null ? { error: reason } : failure(error);
}

function failure(error) {
  const told = { retry_after_seconds: error.retryAfter, error_classes: classesOf(error) };
  return { error: codeOf(error), ...optional(told) };
}

function codeOf(error) {
  if (error instanceof TransportError) return "no_answer";
  if (error instanceof VolcanoError && error.code !== null) return error.code;
  if (error instanceof ServerError) return "bad_answer";
  if (error instanceof TypeError || error instanceof RangeError) return "argument";
  throw error;
}

/** The names of the error's class and of all its base classes. */
function classesOf(error) {
  const names = [];
  for (let one = Object.getPrototypeOf(error); one !== Object.prototype; one = Object.getPrototypeOf(one)) {
    names.push(one.constructor.name);
  }
  return names;
}

/** Whether the lease and the error show the ids as the caller gave them. */
function idsKept({ token, request_id: requestId }, { lease, error }) {
  return (lease === null || lease.token === token) && (error === null || error.requestId === requestId);
}

function placeOf({ actor, key }) {
  return `${actor} ${key}`;
}

/** Without what is not there. */
function optional(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}

// --- the conversation --------------------------------------------------------------------------------------

const unseen = [];
process.on("unhandledRejection", (reason) => unseen.push(`unhandled rejection: ${reason?.stack ?? reason}`));
process.on("uncaughtException", (error) => unseen.push(`uncaught: ${error.stack}`));

async function answer(face, { verb, args }) {
  try {
    if (verb.startsWith("#") || typeof face[verb] !== "function") return { crash: `this face does not know ${verb}` };
    const answered = await face[verb](args);
    if (verb === "close" && unseen.length > 0) return { crash: unseen.join("\n") };
    return { answer: answered };
  } catch (error) {
    return { crash: error.stack };
  }
}

let face = new Face();
for (;;) {
  for (let turn = 0; turn < TURNS_BETWEEN_VERBS; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  const line = nextLine();
  if (line === null) break; // and nothing may keep the process alive
  const asked = JSON.parse(line);
  if (asked.verb === "open") face = new Face();
  say(await answer(face, asked));
}
