// The dialog that frees a lock from the holder that it shows, and from no other.

import { ApiError, send } from "../api.js";
import { html, useState } from "../lib.js";
import { duration, localTime, nowMs, wholeSeconds } from "../time.js";
import { announce } from "./basics.js";
import { Dialog, Field } from "./dialog.js";

/** @typedef {import("../../types.js").Lock} Lock */

const REASON_LENGTH_MAX = 200; // HTTP-34

/** @param {{ lock: Lock, current: Lock | null, path: string, onClose: () => void, onDone: () => void }} props */
export function ForceRelease({ lock, current, path, onClose, onDone }) {
  const [typed, setTyped] = useState("");
  const [reason, setReason] = useState("");
  const hasChanged = current !== null && (!current.held || current.fencingToken !== lock.fencingToken);
  const isReady = typed === lock.key && reason.trim() !== "" && !hasChanged;
  const free = async () => {
    const headers = { "X-Volcano-Reason": encodeURIComponent(reason.trim()) };
    try {
      await send("DELETE", `${path}/leases/${lock.fencingToken}`, { headers });
    } catch (error) {
      if (error instanceof ApiError && error.code === "lock_changed") {
        onDone();
        throw new Error(
          "The lock has changed hands meanwhile, so nothing was freed. Close this and look at the new holder.",
        );
      }
      throw error;
    }
    announce(`${lock.key} is free`);
    onDone();
    onClose();
  };
  const until = (current ?? lock).expiresMs;
  return html`<${Dialog} title="Force release" action="Free the lock" danger=${true} disabled=${!isReady}
    onSubmit=${free} onClose=${onClose}>
    <p><strong>${lock.holder ?? "A holder without a label"}</strong> has held <strong class="mono">${lock.key}</strong> for
      ${" "}${duration(wholeSeconds(nowMs.value - lock.acquiredMs))}, with fencing token <span class="mono">${lock.fencingToken}</span>.
      ${lock.waiters ? ` ${lock.waiters === 1 ? "One waiter is" : `${lock.waiters} waiters are`} next.` : ""}</p>
    <ul class="consequences">
      <li>The old holder is not stopped. It works on until its next renewal fails, at the latest until
        ${" "}${localTime(until, nowMs.value)}.</li>
      <li>Two workers can work at once until then. Only a resource that checks fencing tokens refuses the late writes of the old one.</li>
      <li>If another holder has the lock by now, nothing is freed.</li>
    </ul>
    ${
      hasChanged &&
      html`<p class="notice notice-warn" role="alert">The lock ${current?.held ? "has a new holder" : "is free"} now: nothing is left to free here.</p>`
    }
    <${Field} label="Type the name of the lock" value=${typed} onInput=${setTyped} mono=${true}
      autofocus=${true} autocomplete="off" placeholder=${lock.key} />
    <${Field} label="Reason" value=${reason} onInput=${setReason} maxlength=${REASON_LENGTH_MAX}
      autocomplete="off" hint="Kept in the history and the audit, and sent to everyone who watches the lock." />
  </${Dialog}>`;
}
