// Sign-in with a key, for those who have no link from `volcano-locks dashboard`.

import { hasExpired, messageOf, signIn } from "../api.js";
import { html, signal, useState } from "../lib.js";
import { Code } from "../parts/basics.js";
import { Field } from "../parts/dialog.js";
import { Mark } from "../parts/icons.js";

/** Why a sign-in link did not work. */
export const signInFault = signal("");

export function SignInPage() {
  const [credential, setCredential] = useState("");
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    const given = credential.trim();
    if (!given) {
      setFault("Paste a service key (sk-…) or an admin token.");
      return;
    }
    setBusy(true);
    setCredential(""); // the page keeps no secret, whatever the answer
    try {
      await signIn({ credential: given });
      signInFault.value = "";
    } catch (error) {
      setFault(messageOf(error));
    }
    setBusy(false);
  };
  const notice = hasExpired.value ? "Your session has ended. Sign in again to go on." : signInFault.value;
  return html`<main class="sign-in">
    <div class="sign-in-box">
      <div class="sign-in-brand"><${Mark} /><h1>volcano-locks</h1></div>
      ${notice && html`<p class="notice ${hasExpired.value ? "notice-warn" : "notice-bad"}" role="alert">${notice}</p>`}
      <form onSubmit=${submit} autocomplete="off">
        <${Field} label="Service key or admin token" type="password" value=${credential} onInput=${setCredential}
          autofocus=${true} mono=${true} placeholder="sk-…" error=${fault} autocomplete="off"
          hint="A service key shows the locks of its project. An admin token manages projects and keys." />
        <button class="primary wide" disabled=${busy}>Sign in</button>
      </form>
      <div class="sign-in-other">
        <h2>Without copying a key</h2>
        <p>In a terminal that has the key, this opens a link that works once, within 60 seconds:</p>
        <${Code} text="volcano-locks dashboard" label="the command" />
      </div>
    </div>
  </main>`;
}
