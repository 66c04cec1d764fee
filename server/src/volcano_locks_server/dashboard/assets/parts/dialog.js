// A modal dialog with a form: Escape and Cancel close it, a failure is shown in it.

import { messageOf } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";

/**
 * @param {{ title: string, action: string, danger?: boolean, disabled?: boolean, onSubmit: () => Promise<void>,
 *   onClose: () => void, children?: any }} props
 */
export function Dialog({ title, action, danger = false, disabled = false, onSubmit, onClose, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    if (busy || disabled) return;
    setBusy(true);
    setFault("");
    try {
      await onSubmit();
    } catch (error) {
      setFault(messageOf(error));
    }
    setBusy(false);
  };
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${onClose}>
    <form onSubmit=${submit} autocomplete="off">
      <h2 id="dialog-title">${title}</h2>
      ${children}
      ${fault && html`<p class="notice notice-bad" role="alert">${fault}</p>`}
      <div class="dialog-actions">
        <button type="button" onClick=${() => dialog.current?.close()}>Cancel</button>
        <button class=${danger ? "danger" : "primary"} disabled=${disabled || busy}>${action}</button>
      </div>
    </form>
  </dialog>`;
}

/**
 * A labelled text field.
 * @param {{ label: string, value: string, onInput: (value: string) => void, hint?: any, type?: string, error?: string,
 *   autofocus?: boolean, placeholder?: string, mono?: boolean, required?: boolean, inputmode?: string }} props
 */
export function Field({ label, value, onInput, hint, type = "text", error, mono, ...rest }) {
  const id = `field-${label.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    <input id=${id} type=${type} value=${value} class=${mono ? "mono" : ""} spellcheck=${false} autocapitalize="off"
      aria-invalid=${error ? "true" : undefined} aria-describedby=${hint || error ? `${id}-hint` : undefined} ...${rest}
      onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)} />
    ${(error || hint) && html`<p id="${id}-hint" class=${error ? "hint bad" : "hint"}>${error || hint}</p>`}
  </div>`;
}
