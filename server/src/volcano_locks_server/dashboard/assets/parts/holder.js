// The card of the holder of a lock.
import { html } from "../lib.js";
import { duration, nowMs, toMs, wholeSeconds } from "../time.js";
import { HOLDS_MIN } from "../usual.js";
import { Card, When } from "./basics.js";
import { TimeLeft } from "./time_left.js";

/** @typedef {import("../../types.js").Lock} Lock */
/** @typedef {import("../../types.js").Hold} Hold */

const BEGAN = {
  free: () => "at once: it was free",
  taken_over: () => "taken over after an expired lease",
  waited: (/** @type {Hold} */ hold) => `after waiting ${duration(hold.waited_seconds ?? 0)}`,
};

/**
 * The parts of the label that the command line sends: HOST:PID.
 * @param {string | null} label
 */
export function hostAndProcess(label) {
  const found = /^(?<host>[A-Za-z0-9._-]+)[:/#](?<pid>\d+)$/.exec(label ?? "");
  return found?.groups ? { host: found.groups.host ?? "", pid: found.groups.pid ?? "" } : null;
}

/** @param {{ lock: Lock, hold: Hold | null, statistics: import("../../types.js").HeldStatistics | null }} props */
export function HolderCard({ lock, hold, statistics }) {
  const now = nowMs.value;
  const usual = statistics && statistics.count >= HOLDS_MIN ? usually(statistics) : null;
  if (!lock.held) {
    return html`<${Card} title="Holder"><p class="big quiet">No one</p>
      <p class="quiet">The next acquire gets the lock${lock.fencingToken ? `, with a fencing token above ${lock.fencingToken}` : ""}.</p>
      ${usual && html`<dl class="facts"><dt>Usually held</dt><dd>${usual}</dd></dl>`}</${Card}>`;
  }
  const parts = hostAndProcess(lock.holder);
  const isSameInstant = hold !== null && toMs(hold.renewed_at) === lock.renewedMs;
  const renewals = isSameInstant ? hold.renewals : null; // the count and the time come in different responses
  const rows = /** @type {[string, any][]} */ ([
    ["Expires in", html`<${TimeLeft} lock=${lock} now=${now} />`],
    ["Held since", html`<${When} ms=${lock.acquiredMs} />`],
    [
      "Renewed",
      html`<${When} ms=${lock.renewedMs} />${renewals ? html` <span class="quiet">${renewals === 1 ? "once" : `${renewals} times`}</span>` : ""}`,
    ],
    ["Fencing token", html`<span class="mono">${lock.fencingToken}</span>`],
    ...(parts
      ? [
          ["Host", parts.host],
          ["Process", html`<span class="mono">${parts.pid}</span>`],
        ]
      : []),
    ...(hold?.client ? [["Client", hold.client]] : []),
    ...(hold?.key_name ? [["Service key", hold.key_name]] : []),
    ...(hold?.address ? [["Address", html`<span class="mono">${hold.address}</span>`]] : []),
    ...(hold?.began ? [["Acquired", BEGAN[hold.began](hold)]] : []),
    ...(usual ? [["Usually held", usual]] : []),
  ]);
  return html`<${Card} title="Holder">
    <p class="big">${lock.holder ?? html`<span class="quiet">No label</span>`}</p>
    <p class="lead">for ${duration(wholeSeconds(now - lock.acquiredMs))}</p>
    <dl class="facts">${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </${Card}>`;
}

/** @param {import("../../types.js").HeldStatistics} statistics */
const usually = ({ count, p50_seconds, p95_seconds, maximum_seconds }) =>
  html`${duration(p50_seconds ?? Number.NaN)}, at most ${duration(maximum_seconds ?? Number.NaN)}${" "}
    <span class="quiet" title=${`95 % are held for less than ${duration(p95_seconds ?? Number.NaN)}`}>in ${count} holds</span>`;
