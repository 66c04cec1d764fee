// All projects, for an admin token.

import { change } from "../api.js";
import { html, useState } from "../lib.js";
import { all } from "../paging.js";
import { announce, Empty, Fault, Heading, useRead } from "../parts/basics.js";
import { Dialog, Field } from "../parts/dialog.js";
import { address } from "../route.js";
import { count, localDay, toMs } from "../time.js";

/** @typedef {import("../../types.js").Project} Project */

/** @param {number} perMinute */
export const quota = (perMinute) => (perMinute === 0 ? "no limit" : `${count(perMinute)} / min`);

export function ProjectsPage() {
  const projects = useRead(() => /** @type {Promise<Project[]>} */ (all("/projects")), []);
  const [creating, setCreating] = useState(false);
  return html`
    <${Heading} title="Projects & keys" lead="A project has its own locks, service keys and quota.">
      <button type="button" class="primary" onClick=${() => setCreating(true)}>New project</button>
    </${Heading}>
    ${projects.error !== null && html`<${Fault} error=${projects.error} retry=${projects.again} />`}
    ${projects.value?.length === 0 && html`<${Empty} title="No projects yet"><p>Create one, then a service key for its workers.</p></${Empty}>`}
    ${
      projects.value &&
      projects.value.length > 0 &&
      html`<div class="card flush"><div class="table-scroll"><table>
      <thead><tr><th scope="col">Project</th><th scope="col" class="number">Quota</th><th scope="col">Created</th></tr></thead>
      <tbody>${projects.value.map(
        (project) => html`<tr key=${project.id}>
        <td><a class="strong" href=${address("projects", project.id)}>${project.name}</a></td>
        <td class="number nowrap">${quota(project.requests_per_minute)}</td>
        <td class="nowrap quiet">${localDay(toMs(project.created_at))}</td></tr>`,
      )}</tbody>
    </table></div></div>`
    }
    ${creating && html`<${NewProject} onClose=${() => setCreating(false)} />`}
  `;
}

/** @param {{ onClose: () => void }} props */
function NewProject({ onClose }) {
  const [name, setName] = useState("");
  const create = async () => {
    const made = await change("POST", "/projects", { name: name.trim() });
    announce(`Project ${made.name} created`);
    location.hash = address("projects", made.id);
  };
  return html`<${Dialog} title="New project" action="Create" disabled=${!name.trim()} onSubmit=${create} onClose=${onClose}>
    <${Field} label="Name" value=${name} onInput=${setName} autofocus=${true} autocomplete="off" hint="Letters, digits, _ and -." />
  </${Dialog}>`;
}
