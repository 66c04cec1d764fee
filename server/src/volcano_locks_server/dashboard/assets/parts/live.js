// Whether the page is live, for the heading of a page with an event stream.
import { html, useEffect } from "../lib.js";
import { shownStream } from "../stream.js";
import { duration, nowMs, wholeSeconds } from "../time.js";
import { announce } from "./basics.js";

export function Live() {
  const stream = shownStream.value;
  const state = stream?.state.value;
  useEffect(() => {
    if (state === "lost") announce("The live connection was lost. What is shown may be old.");
    if (state === "live") announce("Live.");
  }, [state]);
  if (!stream || !state) return null;
  const seconds = wholeSeconds(nowMs.value - nowMs.peek() + Date.now() - stream.receivedMs.value);
  const words = {
    live: `Live · ${duration(seconds)} ago`,
    connecting: "Connecting …",
    paused: "Paused while hidden",
    lost: `Connection lost · ${duration(seconds)} ago`,
  };
  return html`<div class="live live-${state}" title="When the server last sent something">
    <span class="dot" aria-hidden="true"></span><span>${words[state]}</span>
    ${state === "lost" && html`<button type="button" onClick=${() => stream.retry()}>Reconnect</button>`}
  </div>`;
}
