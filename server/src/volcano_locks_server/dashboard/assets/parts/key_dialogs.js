// Dialogs for service keys: create, rotate, revoke, and the secret of a fresh one, which is shown once.

import { change } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { serverNow, toMs } from "../time.js";
import { announce, Code, When } from "./basics.js";
import { Dialog, Field } from "./dialog.js";

/** @typedef {import("../../types.js").ServiceKey} ServiceKey */

const PERMISSIONS = {
  "*": "Everything",
  "locks.manage": "Acquire, renew, release and free locks",
  "locks.read": "Read locks only",
};

/** @type {[number, string][]} */
const OVERLAPS = [
  [0, "at once"],
  [3600, "in 1 hour"],
  [86_400, "in 1 day"],
  [604_800, "in 7 days"],
];

/** @param {{ path: string, onClose: () => void, onFresh: (key: ServiceKey) => void }} props */
export function NewKey({ path, onClose, onFresh }) {
  const [name, setName] = useState("");
  const [permission, setPermission] = useState("locks.manage");
  const create = async () =>
    onFresh(await change("POST", `${path}/service-keys`, { name: name.trim(), permissions: [permission] }));
  return html`<${Dialog} title="New service key" action="Create" disabled=${!name.trim()} onSubmit=${create} onClose=${onClose}>
    <${Field} label="Name" value=${name} onInput=${setName} autofocus=${true} autocomplete="off" hint="Say which worker uses it, such as nightly-rollup." />
    <fieldset><legend>Permission</legend>
      ${Object.entries(PERMISSIONS).map(
        ([value, words]) => html`<label class="option">
        <input type="radio" name="permission" value=${value} checked=${permission === value} onChange=${() => setPermission(value)} />
        <span>${words} <span class="mono quiet">${value}</span></span></label>`,
      )}
    </fieldset>
  </${Dialog}>`;
}

/** @param {{ path: string, of: ServiceKey, onClose: () => void, onFresh: (key: ServiceKey) => void }} props */
export function RotateKey({ path, of: key, onClose, onFresh }) {
  const [seconds, setSeconds] = useState(86_400);
  const keptMs = toMs(key.old_secret_good_until);
  const rotate = async () =>
    onFresh(await change("POST", `${path}/service-keys/${key.id}/regenerate`, { keep_old_seconds: seconds }));
  return html`<${Dialog} title=${`Rotate ${key.name}`} action="Make a new secret" onSubmit=${rotate} onClose=${onClose}>
    <p>The key gets a new secret and keeps its name and permissions. Workers can be moved to it one by one while the old secret stays valid.</p>
    <div class="field"><label for="overlap">The old secret ends</label>
      <select id="overlap" value=${seconds} onChange=${(/** @type {any} */ event) => setSeconds(Number(event.currentTarget.value))}>
        ${OVERLAPS.map(([value, words]) => html`<option value=${value}>${words}</option>`)}
      </select></div>
    ${seconds === 0 && html`<p class="notice notice-warn">Workers with the old secret are refused at once. They lose their leases when these expire.</p>`}
    ${keptMs > serverNow() && html`<p class="notice notice-warn">The secret from before the last rotation, kept until <${When} ms=${keptMs} />, ends now.</p>`}
  </${Dialog}>`;
}

/** @param {{ path: string, of: ServiceKey, onClose: () => void, onRevoked: () => void }} props */
export function RevokeKey({ path, of: key, onClose, onRevoked }) {
  const [typed, setTyped] = useState("");
  const revoke = async () => {
    await change("DELETE", `${path}/service-keys/${key.id}`);
    announce(`${key.name} revoked`);
    onRevoked();
  };
  return html`<${Dialog} title=${`Revoke ${key.name}`} action="Revoke" danger=${true} disabled=${typed !== key.name} onSubmit=${revoke} onClose=${onClose}>
    <p>Workers with this key are refused at once. They cannot renew, so they lose their leases when these expire. This cannot be undone.</p>
    <${Field} label="Type the name of the key" value=${typed} onInput=${setTyped} mono=${true} autofocus=${true} autocomplete="off" placeholder=${key.name} />
  </${Dialog}>`;
}

const STORED = "stored";

/**
 * The secret is in the page only while this is open, so only its button closes it.
 * @param {{ fresh: ServiceKey, onClose: () => void }} props
 */
export function FreshKey({ fresh, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  // A browser lets a page refuse the first Escape only: the second one closes the dialog, which then opens again.
  const closed = () => (dialog.current?.returnValue === STORED ? onClose() : dialog.current?.showModal());
  return html`<dialog ref=${dialog} aria-labelledby="fresh-title" onClose=${closed}
    onCancel=${(/** @type {Event} */ event) => event.preventDefault()}>
    <h2 id="fresh-title">The secret of ${fresh.name}</h2>
    <p>It is shown only now. Put it where the workers find it, as VOLCANO_SERVICE_KEY.</p>
    <${Code} text=${fresh.key_value ?? ""} label="the secret" />
    <div class="dialog-actions"><button type="button" class="primary" onClick=${() => dialog.current?.close(STORED)}>I have stored it</button></div>
  </dialog>`;
}
