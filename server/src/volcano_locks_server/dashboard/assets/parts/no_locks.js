// What the list of locks shows when it has no rows.

import { base } from "../api.js";
import { html } from "../lib.js";
import { CHOICES } from "../lock_view.js";
import { Code, Empty } from "./basics.js";

/** @param {{ all: boolean, onAll: () => void }} props */
export function NoLocks({ all, onAll }) {
  const commands = [
    `export VOLCANO_API_URL=${location.origin}${base}`,
    "export VOLCANO_SERVICE_KEY=sk-…",
    "volcano-locks run first-job -- sleep 20",
  ].join("\n");
  return html`<${Empty} title=${all ? "No locks yet" : "No lock is held now"}>
    <p>Run a job under a lock. It appears here at once, and while it runs, a second one is refused.</p>
    <${Code} text=${commands} label="the three lines" />
    ${!all && html`<p><button type="button" class="link" onClick=${onAll}>Show locks that are free</button></p>`}
  </${Empty}>`;
}

/** @param {{ choice: import("../lock_view.js").Choice, text: string, onClear: () => void }} props */
export function NoMatch({ choice, text, onClear }) {
  const good = {
    not_renewing: "Every holder renews in time.",
    contended: "No one waits for a lock.",
    long: "No lock is held for longer than usual.",
  };
  const words = !text && choice in good ? good[/** @type {keyof typeof good} */ (choice)] : "";
  const detail = text ? `No lock in “${CHOICES[choice]}” matches “${text}”.` : "";
  return html`<${Empty} title=${words || "Nothing matches"}>
    ${detail && html`<p>${detail}</p>`}
    <p><button type="button" class="link" onClick=${onClear}>Show all that are held</button></p>
  </${Empty}>`;
}
