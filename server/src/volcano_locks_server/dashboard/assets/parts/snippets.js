// How to use a lock from a shell and in code, to copy.
import { html, useState } from "../lib.js";
import { Code } from "./basics.js";

/** @type {Record<string, (name: string) => string>} */
const SNIPPETS = {
  Shell: (name) => `volcano-locks run ${name} -- ./job.sh`,
  Python: (name) =>
    `from volcano_locks import Client\n\nwith Client() as client:\n    with client.locks.with_lock("${name}", ttl=30) as guard:\n        guard.raise_if_lost()\n        ...`,
  JavaScript: (name) =>
    `import { Client } from "volcano-locks";\n\nawait new Client().locks.throwOnError().withLock(\n  "${name}", { ttl: 30 },\n  async ({ signal, lease }) => { /* the work */ },\n);`,
  Ruby: (name) =>
    `require "volcano_locks"\n\nVolcanoLocks::Client.new.locks.with_lock("${name}", ttl: 30) do |guard|\n  guard.raise_if_lost!\nend`,
  Inspect: (name) => `volcano-locks get ${name}\nvolcano-locks history ${name}\nvolcano-locks watch ${name}`,
};

/** @param {{ name: string }} props */
export function Snippets({ name }) {
  const [language, setLanguage] = useState("Shell");
  return html`<div class="snippets">
    <div class="choices" role="group" aria-label="Language">
      ${Object.keys(SNIPPETS).map((one) => html`<button type="button" aria-pressed=${one === language} onClick=${() => setLanguage(one)}>${one}</button>`)}
    </div>
    <${Code} text=${SNIPPETS[language]?.(name) ?? ""} label=${`${language} code`} />
  </div>`;
}
