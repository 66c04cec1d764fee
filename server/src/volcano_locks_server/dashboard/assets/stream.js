// The event stream of one lock or of a prefix (EVENT-1): read with fetch, because EventSource hides comment lines, by
// which a quiet stream shows that it lives, and the status of a refusal.

import { ApiError, send } from "./api.js";
import { signal } from "./lib.js";

const SILENCE_MS_MAX = 40_000; // the server sends a comment at least every 15 s
const BACKOFF_MS_MAX = 15_000;

/** @typedef {import("../types.js").LockEvent} LockEvent */
/** @typedef {"connecting" | "live" | "lost" | "paused"} State */

/** What the header shows of the page's stream; null on pages without one. */
export const shownStream = signal(/** @type {EventStream | null} */ (null));

export class EventStream {
  state = signal(/** @type {State} */ ("connecting"));
  /** When the server last sent anything, by this machine's clock. */
  receivedMs = signal(Date.now());
  /** Why the stream is lost. */
  fault = signal("");
  #lastId = "";
  #failures = 0;
  #timer = 0;
  #ended = false;
  #connection = /** @type {AbortController | null} */ (null);

  /**
   * @param {string} path
   * @param {{ onEvent: (event: LockEvent) => void, onBegin: (missed: boolean) => void }} handlers `onBegin` is called
   *   when events may have been missed (read the state again), and once when the stream begins
   */
  constructor(path, handlers) {
    this.path = path;
    this.handlers = handlers;
    document.addEventListener("visibilitychange", this.#onVisibility);
    addEventListener("offline", this.#onOffline);
    addEventListener("online", this.#onVisibility);
    shownStream.value = this;
    this.#onVisibility();
  }

  end() {
    this.#ended = true;
    document.removeEventListener("visibilitychange", this.#onVisibility);
    removeEventListener("offline", this.#onOffline);
    removeEventListener("online", this.#onVisibility);
    this.#stop();
    if (shownStream.value === this) shownStream.value = null;
  }

  /** Connect now instead of at the end of the back-off. */
  retry() {
    this.#stop();
    void this.#run();
  }

  #onVisibility = () => {
    this.#stop();
    if (document.hidden) this.state.value = "paused";
    else void this.#run();
  };

  #onOffline = () => {
    this.#stop();
    this.fault.value = "This device is offline.";
    this.state.value = "lost";
  };

  #stop() {
    clearTimeout(this.#timer);
    this.#connection?.abort();
    this.#connection = null;
  }

  async #run() {
    if (this.#ended || document.hidden) return;
    const connection = new AbortController();
    this.#connection = connection;
    if (this.state.value !== "lost") this.state.value = "connecting";
    let retryAfterSeconds = 0;
    try {
      await this.#read(connection);
      this.fault.value = "The server ended the stream.";
    } catch (error) {
      if (connection !== this.#connection) return; // stopped on purpose, or replaced
      this.fault.value = error instanceof ApiError ? error.message : "The connection to the server was lost.";
      if (error instanceof ApiError) retryAfterSeconds = error.retryAfterSeconds;
    }
    if (connection !== this.#connection) return;
    this.state.value = "lost";
    const backoffMs = Math.min(BACKOFF_MS_MAX, 500 * 2 ** this.#failures) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    this.#timer = setTimeout(() => void this.#run(), Math.max(retryAfterSeconds * 1000, backoffMs));
  }

  /** @param {AbortController} connection */
  async #read(connection) {
    /** @type {Record<string, string>} */
    const headers = this.#lastId ? { "Last-Event-ID": this.#lastId } : {};
    const response = await send("GET", this.path, { headers, signal: connection.signal });
    if (!response.body) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => connection.abort(), SILENCE_MS_MAX);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (connection !== this.#connection || done) return;
      this.receivedMs.value = Date.now();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) this.#take(block);
    }
  }

  /** @param {string} block */
  #take(block) {
    let name = "";
    let data = "";
    let id = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data = line.slice(5).trim();
      else if (line.startsWith("id:")) id = line.slice(3).trim();
    }
    const isFirst = this.#lastId === "";
    if (id) this.#lastId = id;
    if (this.state.value !== "live") {
      this.state.value = "live";
      this.#failures = 0;
    }
    if (id && !name && isFirst) this.handlers.onBegin(false);
    else if (name === "reset") this.handlers.onBegin(true);
    else if (name && data) this.handlers.onEvent({ ...JSON.parse(data), event: name });
  }
}
