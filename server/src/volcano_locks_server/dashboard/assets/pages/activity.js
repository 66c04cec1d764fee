// The last hour of a node: small charts of what its locks did.
import { get, session } from "../api.js";
import { html } from "../lib.js";
import { Card, Fault, Heading, useEvery, useRead } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { address } from "../route.js";
import { count, toMs } from "../time.js";

/** @typedef {import("../../types.js").Activity} Activity */
/** @typedef {import("../../types.js").ActivityMinute} Minute */

const REFRESH_SECONDS = 10;
const MINUTE_MS = 60_000;

export function ActivityPage() {
  const activity = useRead(() => /** @type {Promise<Activity>} */ (get("/activity")), []);
  useEvery(() => void activity.again(), REFRESH_SECONDS);
  const whose = session.value?.project_id ? "this project" : "all projects";
  return html`
    <${Heading} title="Activity" lead=${`The last hour of ${whose}, minute by minute, as the node that answers here has seen it.`} />
    ${activity.error !== null && html`<${Fault} error=${activity.error} retry=${activity.again} />`}
    ${activity.value && html`<${Charts} activity=${activity.value} />`}
  `;
}

/** @param {number} ms */
const milliseconds = (ms) =>
  ms >= 1000 ? `${Number((ms / 1000).toPrecision(2))} s` : `${Number(ms.toPrecision(2))} ms`;

/** @param {{ activity: Activity }} props */
function Charts({ activity }) {
  const { minutes, requests_per_minute } = activity;
  const time = { endMs: toMs(activity.at), stepMs: MINUTE_MS };
  /** @param {(minute: Minute) => number | null | undefined} value */
  const series = (value) => minutes.map((minute) => value(minute) ?? null);
  const limit = requests_per_minute || null;
  return html`<div class="charts">
    <${Card}><${Chart} title="Grants" unit="per minute" ...${time} lines=${[
      { name: "granted", kind: "main", values: series((one) => one.grants) },
      { name: "found it held", kind: "second", values: series((one) => one.contended) },
      { name: "handed to a waiter", kind: "third", values: series((one) => one.hand_offs) },
    ]} /></${Card}>
    <${Card}><${Chart} title="Losses" unit="per minute" ...${time} lines=${[
      { name: "not renewed", kind: "bad", values: series((one) => one.losses.not_renewed) },
      { name: "forced free", kind: "second", values: series((one) => one.losses.forced) },
      { name: "no longer the owner", kind: "third", values: series((one) => one.losses.ownership_lost) },
    ]} /></${Card}>
    <${Card}><${Chart} title="Time to a grant" unit="with a wait" format=${milliseconds} ...${time} lines=${[
      { name: "median", kind: "main", values: series((one) => one.wait_ms?.p50) },
      { name: "95 %", kind: "second", values: series((one) => one.wait_ms?.p95) },
    ]} /></${Card}>
    <${Card}><${Chart} title="Commit" unit="of the store" format=${milliseconds} ...${time} lines=${[
      { name: "median", kind: "main", values: series((one) => one.commit_ms?.p50) },
      { name: "95 %", kind: "second", values: series((one) => one.commit_ms?.p95) },
    ]} /></${Card}>
    <${Card}><${Chart} title="Quota" unit=${limit ? `of ${count(limit)} per minute` : "no limit"} limit=${limit} ...${time} lines=${[
      { name: "requests", kind: "main", values: series((one) => one.requests) },
      { name: "refused", kind: "bad", values: series((one) => one.over_quota) },
    ]} /></${Card}>
    <${Card} title="Most contended" note="in the last half hour to hour"><${Ranks} locks=${activity.most_contended} /></${Card}>
  </div>`;
}

/** @param {{ locks: { key: string, count: number }[] }} props */
function Ranks({ locks }) {
  const most = locks[0]?.count ?? 1;
  if (!session.value?.project_id)
    return html`<p class="quiet">Shown per project: sign in with a service key of the project.</p>`;
  if (!locks.length) return html`<p class="quiet">No request found its lock held.</p>`;
  return html`<ol class="ranks">${locks.slice(0, 5).map(
    (lock) => html`<li key=${lock.key}>
      <a class="mono" href=${address("locks", lock.key)}>${lock.key}</a>
      <span>${count(lock.count)} times</span>
      <span class="bar" aria-hidden="true"><span style=${{ transform: `scaleX(${(lock.count / most).toFixed(3)})` }}></span></span></li>`,
  )}</ol>`;
}
