// Who changed what, when and why.
import { get, isAdmin, messageOf, session } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { Empty, Fault, Heading, When } from "../parts/basics.js";
import { quoted, visible } from "../text.js";
import { localTime, nowMs, toMs } from "../time.js";

/** @typedef {import("../../types.js").AuditEntry} AuditEntry */

const INSTANT = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

const ACTORS = {
  service_key: "key",
  admin_token: "admin token",
  command_line: "command line",
  server: "server",
};

export function AuditPage() {
  const path = isAdmin() ? "/audit" : `/projects/${session.value?.project_id}/audit`;
  const [entries, setEntries] = useState(/** @type {AuditEntry[] | null} */ (null));
  const [cursor, setCursor] = useState("");
  const [fault, setFault] = useState(/** @type {unknown} */ (null));
  const [text, setText] = useState("");
  /** @param {string} after */
  const load = async (after) => {
    try {
      const query = new URLSearchParams({ limit: "100", ...(after ? { cursor: after } : {}) });
      const page = await get(`${path}?${query}`);
      setEntries((old) => [...(after && old ? old : []), ...page.items]);
      setCursor(page.next_cursor ?? "");
      setFault(null);
    } catch (error) {
      setFault(error);
    }
  };
  useEffect(() => void load(""), [path]);
  const shown = entries?.filter((entry) => searched(entry).includes(text.toLowerCase())) ?? [];
  return html`
    <${Heading} title="Audit" lead="Who changed what, when and why. Nothing is changed or removed here, and entries outlive their project.">
      <button type="button" onClick=${() => void load("")}>Refresh</button>
    </${Heading}>
    ${fault !== null && html`<${Fault} error=${messageOf(fault)} retry=${() => void load("")} />`}
    ${entries?.length === 0 && html`<${Empty} title="Nothing was changed yet"><p>Sign-ins, force releases and changes of projects and keys appear here.</p></${Empty}>`}
    ${
      entries &&
      entries.length > 0 &&
      html`
      <div class="filters"><div class="filter-text"><input class="alone" type="search" aria-label="Text in the audit" placeholder="Action, name, reason or address"
        value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value.trim())} /></div></div>
      <div class="card flush"><div class="table-scroll" role="region" aria-label="Entries" tabindex="0"><table class="stack audit">
        <thead><tr><th scope="col">When</th><th scope="col">What</th><th scope="col">Who</th><th scope="col">Change</th></tr></thead>
        <tbody>${shown.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} />`)}</tbody>
      </table>${shown.length === 0 && html`<p class="nothing">No entry matches “${text}”.</p>`}</div></div>
      ${cursor && html`<button type="button" onClick=${() => void load(cursor)}>Show earlier entries</button>`}`
    }
  `;
}

/** @param {AuditEntry} entry */
const searched = (entry) =>
  [entry.action, entry.actor.name, entry.target.name, entry.reason, entry.address, entry.request_id]
    .join(" ")
    .toLowerCase();

/** @param {{ entry: AuditEntry }} props */
function Entry({ entry }) {
  const { actor, target } = entry;
  return html`<tr>
    <td data-label="When" class="nowrap"><div><${When} ms=${toMs(entry.at)} />
      ${entry.request_id && html`<br /><span class="mono request" title=${`Request ${entry.request_id}`}>${entry.request_id.slice(0, 8)}</span>`}</div></td>
    <td data-label="What"><div><span class="strong">${words(entry.action)}</span>
      ${target.name && html`<br /><span class="mono">${target.name}</span>`}
      ${entry.reason && html`<br /><span class="quiet">${quoted(entry.reason)}</span>`}</div></td>
    <td data-label="Who"><div>${visible(actor.name)} <span class="quiet">${ACTORS[actor.kind] ?? actor.kind}</span>
      ${entry.address && html`<br /><span class="mono quiet">${entry.address}</span>`}</div></td>
    <td data-label="Change"><${Change} before=${entry.before} after=${entry.after} /></td>
  </tr>`;
}

/** @param {string} action such as `service_key_created` */
function words(action) {
  const text = action.replace(/[._]/g, " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {{ before: Record<string, unknown> | null, after: Record<string, unknown> | null }} props */
function Change({ before, after }) {
  // Facts of an end, such as those of a lease that was forced free, have nothing to be compared with.
  const isCompared = before && after && Object.keys(before).some((name) => name in after);
  const names = Object.keys(isCompared ? { ...before, ...after } : (before ?? after ?? {}));
  const changed = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  return html`<dl class="changes">${changed.map((name) => {
    const [old, fresh] = [plain(before?.[name]), plain(after?.[name])];
    if (!old && !fresh) return null;
    return html`<div><dt>${name.replace(/_/g, " ")}</dt><dd>${old && html`<span class=${fresh ? "gone" : ""}>${old}</span>`}${old && fresh && " → "}${fresh}</dd></div>`;
  })}</dl>`;
}

/** @param {unknown} value */
function plain(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "string" && INSTANT.test(value)) return localTime(toMs(value), nowMs.peek());
  return Array.isArray(value) ? value.join(", ") : String(value);
}
