// The nodes over the store: this one in full, of the others what the store knows.
import { get } from "../api.js";
import { html } from "../lib.js";
import { Badge, Card, Fault, Heading, useEvery, useRead, When } from "../parts/basics.js";
import { count, duration, nowMs, toMs, wholeSeconds } from "../time.js";

/** @typedef {import("../../types.js").NodeState} NodeState */

const REFRESH_SECONDS = 10;
const CLOCK_DIFFERENCE_MS_MAX = 1_000; // a worker's safety margin

export function NodesPage() {
  const nodes = useRead(() => /** @type {Promise<{ items: NodeState[] }>} */ (get("/nodes")), []);
  useEvery(() => void nodes.again(), REFRESH_SECONDS);
  const items = nodes.value?.items ?? [];
  return html`
    <${Heading} title="Nodes" lead=${items.length > 1 ? `${items.filter((node) => node.is_live).length} of ${items.length} nodes are live.` : "The servers that share this store."} />
    ${nodes.error !== null && html`<${Fault} error=${nodes.error} retry=${nodes.again} />`}
    <div class="charts nodes">${items.map((node) => html`<${Node} key=${node.id} node=${node} />`)}</div>
  `;
}

/** @param {{ node: NodeState }} props */
function Node({ node }) {
  const { health } = node;
  const title = html`<span class="mono">${node.id.slice(0, 12)}</span>`;
  const rows = /** @type {[string, any][]} */ ([
    ["Last seen", html`<${When} ms=${toMs(node.seen_at)} />`],
    ...(node.version ? [["Version", node.version]] : []),
    ...(node.store ? [["Store", node.store]] : []),
    ...(node.worker !== null ? [["Process", node.worker]] : []),
    ...(node.started_at ? [["Running for", duration(wholeSeconds(nowMs.value - toMs(node.started_at)))]] : []),
    ...(node.clock_difference_ms !== null
      ? [["Clock", html`<${ClockDifference} ms=${node.clock_difference_ms} />`]]
      : []),
    ...counted("Waiters", node.waiters),
    ...counted("Event streams", node.streams),
    ...counted("Connections", node.connections),
  ]);
  const held = health?.takeovers_held;
  return html`<${Card} title=${title} note=${node.is_this ? "answers here" : ""}>
    <p class="state-line node-state">
      ${health?.status === "ok" && html`<${Badge} kind="good">healthy</${Badge}>`}
      ${health && health.status !== "ok" && html`<${Badge} kind="bad">unavailable</${Badge}> ${health.cause}`}
      ${!health && html`<${Badge} kind=${node.is_live ? "good" : "bad"}>${node.is_live ? "live" : "not seen lately"}</${Badge}>`}
      ${held && html`<${Badge} kind="warn">takeovers wait ${duration(held.seconds)}</${Badge}>`}
    </p>
    <dl class="facts">${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </${Card}>`;
}

/**
 * @param {string} name
 * @param {number | null} value
 * @returns {[string, any][]}
 */
const counted = (name, value) => (value === null ? [] : [[name, count(value)]]);

/** @param {{ ms: number }} props */
function ClockDifference({ ms }) {
  const words =
    Math.abs(ms) < 1 ? "equal to the store's" : `${count(Math.abs(ms))} ms ${ms > 0 ? "behind" : "ahead of"} the store`;
  return Math.abs(ms) > CLOCK_DIFFERENCE_MS_MAX ? html`<${Badge} kind="warn">${words}</${Badge}>` : words;
}
