// What happened to a lock since its page was opened, and who waits for it.
import { html } from "../lib.js";
import { quoted } from "../text.js";
import { count, toMs } from "../time.js";
import { Badge, Card, When } from "./basics.js";

/** @typedef {import("../../types.js").LockEvent} LockEvent */

/** @type {Record<string, { words: string, kind: "plain" | "good" | "warn" | "bad" }>} */
const NAMES = {
  acquired: { words: "acquired", kind: "good" },
  renewed: { words: "renewed", kind: "plain" },
  released: { words: "released", kind: "plain" },
  force_released: { words: "forced free", kind: "bad" },
  expired: { words: "expired", kind: "bad" },
  waiting: { words: "waits", kind: "plain" },
  gave_up: { words: "gave up", kind: "plain" },
};

/** @type {Record<string, string>} */
const WHY = {
  taken_over: "after an expired lease",
  waited: "after waiting",
  given_back: "its waiter had disconnected",
  repeated: "by acquiring again",
  left: "it disconnected",
  refused: "refused",
};

/** @param {{ events: LockEvent[] }} props */
export function EventList({ events }) {
  return html`<${Card} title="Events" note="since this page was opened">
    ${events.length === 0 && html`<p class="quiet">Nothing yet. Renewals, releases and new waiters appear here as they happen.</p>`}
    ${
      events.length > 0 &&
      html`<ol class="events" tabindex="0" aria-label="Events, newest first">${events.map((event) => {
        const { words, kind } = NAMES[event.event] ?? { words: event.event, kind: "plain" };
        const why = event.reason ? quoted(event.reason) : (WHY[event.why] ?? "");
        return html`<li><${When} ms=${toMs(event.at)} /><${Badge} kind=${kind}>${words}</${Badge}>
        <span>${event.holder ?? ""}${why && html` <span class="quiet">${why}</span>`}</span></li>`;
      })}</ol>`
    }
  </${Card}>`;
}

/**
 * The waiters in their order: those that the answering node knows, then the number of the others.
 * @param {{ count: number, queue: import("../../types.js").Queued[] }} props
 */
export function Waiters({ count: waiters, queue }) {
  const others = Math.max(0, waiters - queue.length);
  return html`<${Card} title="Waiting" note=${waiters ? count(waiters) : ""}>
    ${waiters === 0 && html`<p class="quiet">No one waits. A worker that acquires with a wait is queued here, first come, first served.</p>`}
    ${
      waiters > 0 &&
      html`<ol class="waiters">
      ${queue.map((one, at) => html`<li><span>${one.holder ?? "no label"}${at === 0 && html` <${Badge}>next</${Badge}>`}</span><span class="quiet">since <${When} ms=${toMs(one.since)} /></span></li>`)}
      ${others > 0 && html`<li class="quiet">${count(others)} more, later in the queue or on other nodes</li>`}
    </ol>`
    }
  </${Card}>`;
}
