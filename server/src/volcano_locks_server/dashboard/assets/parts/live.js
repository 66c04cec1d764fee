// Whether the page is live, for the heading of a page with an event stream.
import { html, useEffect } from "../lib.js";
import { shownStream } from "../stream.js";
import { duration, nowMs, wholeSeconds } from "../time.js";
import { announce } from "./basics.js";

const QUIET_SECONDS = 20; // the server sends something at least every 15 s

/** @type {Record<string, string>} */
const ANNOUNCED = {
  live: "Live.",
  quiet: `The server has sent nothing for ${QUIET_SECONDS} s. What is shown may be old.`,
  lost: "The live connection was lost. What is shown may be old.",
};

export function Live() {
  const stream = shownStream.value;
  const seconds = stream ? wholeSeconds(nowMs.value - nowMs.peek() + Date.now() - stream.receivedMs.value) : 0;
  const connection = stream?.state.value;
  const state = connection === "live" && seconds >= QUIET_SECONDS ? "quiet" : connection;
  useEffect(() => {
    const words = ANNOUNCED[state ?? ""];
    if (words) announce(words);
  }, [state]);
  if (!stream || !state) return null;
  const words = {
    live: `Live · ${duration(seconds)} ago`,
    quiet: `Nothing for ${duration(seconds)}`,
    connecting: "Connecting …",
    paused: "Paused while hidden",
    lost: `Connection lost · ${duration(seconds)} ago`,
  };
  return html`<div class="live live-${state}" title="When the server last sent something">
    <span class="dot" aria-hidden="true"></span><span>${words[state]}</span>
    ${state === "lost" && html`<button type="button" onClick=${() => stream.retry()}>Reconnect</button>`}
  </div>`;
}
