// The holds of the last day: a drawn band, a search for an instant, and a table.

import { get, messageOf } from "../api.js";
import { html, useState } from "../lib.js";
import { duration, localDayAndMinute, localTime, nowMs, serverNow, toMs } from "../time.js";
import { Band } from "./band.js";
import { Badge, Card, Fault, When } from "./basics.js";
import { ending, heldSeconds } from "./hold_ending.js";

/** @typedef {import("../../types.js").Hold} Hold */

const ROWS_MAX = 12;
const DAY_MS = 86_400_000;

/** @param {{ holds: Hold[] | null, fault: unknown, lock: import("../../types.js").Lock, path: string }} props */
export function LastDay({ holds: known, fault, lock, path }) {
  const [all, setAll] = useState(false);
  const to = Math.ceil(nowMs.value / 10_000) * 10_000;
  const holds = known?.filter((hold) => hold.ended_at === null || toMs(hold.ended_at) > to - DAY_MS) ?? null;
  const lost = holds?.filter((hold) => hold.ended === "expired" || hold.ended === "forced").length ?? 0;
  const note = holds?.length
    ? `${holds.length} ${holds.length === 1 ? "hold" : "holds"}${lost ? `, ${lost} lost` : ""}`
    : "";
  return html`<${Card} title="Last 24 hours" note=${note}>
    ${fault !== null && holds === null && html`<${Fault} error=${fault} />`}
    ${holds && holds.length === 0 && html`<p class="quiet">${lock.held ? "The history has no entry of this hold." : "The history has no hold of this lock in the last 24 hours."}</p>`}
    ${
      holds &&
      holds.length > 0 &&
      html`
      <${Band} holds=${holds} to=${to} known=${known?.map((hold) => toMs(hold.began_at)).at(-1)} />
      <${HolderAt} path=${path} />
      <${HoldTable} holds=${all ? holds : holds.slice(0, ROWS_MAX)} />
      ${holds.length > ROWS_MAX && !all && html`<button type="button" class="link" onClick=${() => setAll(true)}>Show all ${holds.length}</button>`}`
    }
  </${Card}>`;
}

/** @param {{ holds: Hold[] }} props */
function HoldTable({ holds }) {
  return html`<div class="table-scroll" role="region" aria-label="Holds" tabindex="0"><table class="stack">
    <thead><tr>
      <th scope="col">From</th><th scope="col" class="number">Held for</th><th scope="col">Holder</th>
      <th scope="col">Ended</th><th scope="col" class="number">Token</th>
    </tr></thead>
    <tbody>${holds.map((hold) => {
      const { kind, words, detail } = ending(hold);
      return html`<tr key=${hold.fencing_token}>
        <td data-label="From" class="nowrap"><${When} ms=${toMs(hold.began_at)} /></td>
        <td data-label="Held for" class="number nowrap">${duration(heldSeconds(hold))}</td>
        <td data-label="Holder">${hold.holder ?? html`<span class="quiet">no label</span>`}</td>
        <td data-label="Ended"><div><${Badge} kind=${kind}>${words}</${Badge}>${detail && html` <span class="detail">${detail}</span>`}</div></td>
        <td data-label="Token" class="number quiet">${hold.fencing_token}</td></tr>`;
    })}</tbody></table></div>`;
}

/** The answer to "who held it at 03:12?". @param {{ path: string }} props */
function HolderAt({ path }) {
  const [at, setAt] = useState("");
  const [answer, setAnswer] = useState(/** @type {any} */ (""));
  /** @param {string} value */
  const look = async (value) => {
    setAt(value);
    const ms = new Date(value).getTime();
    if (Number.isNaN(ms)) {
      setAnswer("");
      return;
    }
    setAnswer(await holderAt(path, ms).catch(messageOf));
  };
  const latest = new Date(nowMs.peek() - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  return html`<div class="holder-at">
    <label for="holder-at">Who held it at</label>
    <input id="holder-at" type="datetime-local" max=${latest} value=${at}
      onInput=${(/** @type {any} */ event) => void look(event.currentTarget.value)} />
    <p role="status">${answer}</p>
  </div>`;
}

/**
 * @param {string} path
 * @param {number} ms
 */
async function holderAt(path, ms) {
  const instant = localDayAndMinute(ms);
  if (ms > serverNow()) return `${instant} is in the future.`;
  const at = new Date(ms).toISOString();
  const hold = await firstHold(path, { at });
  if (hold) return describe(hold);
  // The oldest entries of a lock are deleted first: an earlier one shows that the history reaches back to the instant.
  if (await firstHold(path, { to: at })) return `No one held it on ${instant}.`;
  return `The history has no entry of this lock from ${instant}, or before. Entries are kept for 7 days, unless the server's --history-days says otherwise, and the last 200 of each lock.`;
}

/**
 * @param {string} path
 * @param {Record<string, string>} selection
 * @returns {Promise<Hold | null>}
 */
async function firstHold(path, selection) {
  const page = await get(`${path}/history?${new URLSearchParams({ ...selection, limit: "1" })}`);
  return page.items[0] ?? null;
}

/** @param {Hold} hold */
function describe(hold) {
  const { words, detail } = ending(hold);
  const until = hold.ended_at ? ` to ${localTime(toMs(hold.ended_at), nowMs.peek())}` : "";
  const from = localTime(toMs(hold.began_at), nowMs.peek());
  const ended = `${words}${detail && `, ${detail}`}`;
  return html`<strong>${hold.holder ?? "A holder without a label"}</strong>, from ${from}${until}: ${ended}.`;
}
