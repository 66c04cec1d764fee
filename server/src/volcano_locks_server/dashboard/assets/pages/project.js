// One project, for an admin token: its quota and its service keys.

import { change, get } from "../api.js";
import { html, useState } from "../lib.js";
import { all } from "../paging.js";
import { announce, Badge, Card, Empty, Fault, Heading, useRead, When } from "../parts/basics.js";
import { Dialog, Field } from "../parts/dialog.js";
import { FreshKey, NewKey, RevokeKey, RotateKey } from "../parts/key_dialogs.js";
import { address } from "../route.js";
import { toMs } from "../time.js";
import { quota } from "./projects.js";

/** @typedef {import("../../types.js").Project} Project */
/** @typedef {import("../../types.js").ServiceKey} ServiceKey */
/** @typedef {{ kind: "quota" | "new" } | { kind: "rotate" | "revoke" | "fresh", key: ServiceKey } | null} Open */

/** @param {{ id: string }} props */
export function ProjectPage({ id }) {
  const path = `/projects/${encodeURIComponent(id)}`;
  const project = useRead(() => /** @type {Promise<Project>} */ (get(path)), [path]);
  const keys = useRead(() => /** @type {Promise<ServiceKey[]>} */ (all(`${path}/service-keys`)), [path]);
  const [open, setOpen] = useState(/** @type {Open} */ (null));
  const close = () => setOpen(null);
  /** @param {ServiceKey} key */
  const onFresh = (key) => {
    setOpen({ kind: "fresh", key });
    void keys.again();
  };
  const onRevoked = () => {
    close();
    void keys.again();
  };
  if (project.error !== null && !project.value) return html`<${Fault} error=${project.error} retry=${project.again} />`;
  if (!project.value) return html`<p class="quiet" role="status">Loading …</p>`;
  return html`
    <${Heading} title=${project.value.name} lead=${html`<a class="back" href=${address("projects")}>Projects & keys</a>`}>
      <button type="button" class="primary" onClick=${() => setOpen({ kind: "new" })}>New key</button>
    </${Heading}>
    <${Card} title="Quota">
      <div class="one-line"><p class="big">${quota(project.value.requests_per_minute)}</p>
        <button type="button" onClick=${() => setOpen({ kind: "quota" })}>Change</button></div>
      <p class="quiet">Lock requests of all workers of the project together. Renewals and releases of current holders have a reserve.</p>
    </${Card}>
    ${keys.error !== null && html`<${Fault} error=${keys.error} retry=${keys.again} />`}
    ${keys.value && html`<${Keys} keys=${keys.value} onOpen=${setOpen} />`}
    ${open?.kind === "quota" && html`<${ChangeQuota} path=${path} project=${project.value} onClose=${close} onDone=${project.again} />`}
    ${open?.kind === "new" && html`<${NewKey} path=${path} onClose=${close} onFresh=${onFresh} />`}
    ${open?.kind === "rotate" && html`<${RotateKey} path=${path} of=${open.key} onClose=${close} onFresh=${onFresh} />`}
    ${open?.kind === "revoke" && html`<${RevokeKey} path=${path} of=${open.key} onClose=${close} onRevoked=${onRevoked} />`}
    ${open?.kind === "fresh" && html`<${FreshKey} fresh=${open.key} onClose=${close} />`}
  `;
}

/** @param {string} permission */
const permissionBadge = (permission) => html`<${Badge}>${permission === "*" ? "everything" : permission}</${Badge}> `;

/** @param {{ instant: string | null }} props */
const WhenOrNever = ({ instant }) =>
  instant ? html`<${When} ms=${toMs(instant)} />` : html`<span class="quiet">never</span>`;

/** @param {{ keys: ServiceKey[], onOpen: (open: Open) => void }} props */
function Keys({ keys, onOpen }) {
  if (keys.length === 0)
    return html`<${Empty} title="No service keys yet"><p>Workers of this project need one. Create a key, and give it to them as VOLCANO_SERVICE_KEY.</p></${Empty}>`;
  return html`<${Card} title="Service keys" class="flush"><div class="table-scroll"><table class="stack">
    <thead><tr>
      <th scope="col">Key</th><th scope="col">Permissions</th><th scope="col">Last used</th><th scope="col">Created</th>
      <th scope="col">Expires</th><th scope="col"><span class="for-readers">Actions</span></th>
    </tr></thead>
    <tbody>${keys.map(
      (key) => html`<tr key=${key.id}>
      <td data-label="Key"><span class="strong">${key.name}</span><br /><span class="mono quiet">${key.key_prefix}…</span></td>
      <td data-label="Permissions"><div>${key.permissions.map(permissionBadge)}</div></td>
      <td data-label="Last used" class="nowrap"><${WhenOrNever} instant=${key.last_used_at} /></td>
      <td data-label="Created" class="nowrap"><${When} ms=${toMs(key.created_at)} /></td>
      <td data-label="Expires" class="nowrap"><${WhenOrNever} instant=${key.expires_at} /></td>
      <td class="actions">
        <button type="button" aria-label=${`Rotate ${key.name}`}
          onClick=${() => onOpen({ kind: "rotate", key })}>Rotate</button>${" "}
        <button type="button" class="danger-outline" aria-label=${`Revoke ${key.name}`}
          onClick=${() => onOpen({ kind: "revoke", key })}>Revoke</button>
      </td>
    </tr>`,
    )}</tbody></table></div></${Card}>`;
}

/** @param {{ path: string, project: Project, onClose: () => void, onDone: () => void }} props */
function ChangeQuota({ path, project, onClose, onDone }) {
  const [value, setValue] = useState(String(project.requests_per_minute));
  const isWhole = /^\d+$/.test(value.trim());
  const save = async () => {
    await change("PATCH", path, { requests_per_minute: Number(value) });
    announce("Quota changed");
    onDone();
    onClose();
  };
  return html`<${Dialog} title="Change the quota" action="Save" disabled=${!isWhole} onSubmit=${save} onClose=${onClose}>
    <${Field} label="Requests per minute" value=${value} onInput=${setValue} inputmode="numeric" autofocus=${true} autocomplete="off"
      error=${isWhole ? "" : "A whole number, 0 for no limit."} hint="0 for no limit. It applies at once, on other nodes within 5 seconds." />
  </${Dialog}>`;
}
