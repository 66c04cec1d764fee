// The frame of every page: navigation, the state of the event stream, theme and session.

import { isAdmin, messageOf, session, signOut } from "./api.js";
import { html, useEffect } from "./lib.js";
import { ActivityPage } from "./pages/activity.js";
import { AuditPage } from "./pages/audit.js";
import { LockPage } from "./pages/lock.js";
import { LocksPage } from "./pages/locks.js";
import { NodesPage } from "./pages/nodes.js";
import { ProjectPage } from "./pages/project.js";
import { ProjectsPage } from "./pages/projects.js";
import { SignInPage, signInFault } from "./pages/sign_in.js";
import { announce, announcement, Empty, Fault } from "./parts/basics.js";
import { Icon, Mark } from "./parts/icons.js";
import { address, route } from "./route.js";
import { theme, toggleTheme } from "./theme.js";

/** @typedef {{ path: string, name: string, icon: any, shown: () => boolean }} Entry */

const hasProject = () => Boolean(session.value?.project_id);

/** @type {Entry[]} */
const ENTRIES = [
  { path: "locks", name: "Locks", icon: "locks", shown: hasProject },
  { path: "activity", name: "Activity", icon: "activity", shown: () => true },
  { path: "projects", name: "Projects & keys", icon: "projects", shown: isAdmin },
  { path: "audit", name: "Audit", icon: "audit", shown: () => true },
  { path: "nodes", name: "Nodes", icon: "nodes", shown: () => true },
];

const home = () => (hasProject() ? "locks" : "projects");

export function Shell() {
  const current = session.value;
  return html`
    ${current === undefined && !signInFault.value && html`<p class="starting" role="status">Loading …</p>`}
    ${
      current === undefined &&
      signInFault.value &&
      html`<div class="starting"><${Fault} error=${signInFault.value} retry=${() => location.reload()} /></div>`
    }
    ${current === null && html`<${SignInPage} />`}
    ${current && html`<${Frame} />`}
    <p class="for-readers" role="status" aria-live="polite">${announcement.value}</p>
  `;
}

function Frame() {
  const parts = route.value.length ? route.value : [home()];
  const place = parts.join("/");
  useEffect(() => {
    if (document.activeElement === document.body) document.querySelector("h1")?.focus({ preventScroll: true });
    document.querySelector("main")?.scrollTo(0, 0);
  }, [place]);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="side">
      <a class="brand" href=${address(home())}><${Mark} /><span>volcano-locks</span></a>
      <nav aria-label="Pages">
        ${ENTRIES.filter((entry) => entry.shown()).map(
          (entry) => html`<a href=${address(entry.path)} aria-current=${parts[0] === entry.path ? "page" : undefined}>
            <${Icon} name=${entry.icon} /><span>${entry.name}</span></a>`,
        )}
      </nav>
      <${Account} />
    </header>
    <main id="main" tabindex="-1" class=${parts[0] === "locks" && parts.length === 1 ? "fills" : ""}>
      <${Page} parts=${parts} key=${place} />
    </main>
  </div>`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{ parts: string[] }} props */
function Page({ parts: [first, second] }) {
  if (first === "locks" && hasProject()) return second ? html`<${LockPage} name=${second} />` : html`<${LocksPage} />`;
  if (first === "activity") return html`<${ActivityPage} />`;
  if (first === "projects" && isAdmin())
    return second ? html`<${ProjectPage} id=${second} />` : html`<${ProjectsPage} />`;
  if (first === "audit") return html`<${AuditPage} />`;
  if (first === "nodes") return html`<${NodesPage} />`;
  return html`<${Empty} title="There is no such page"><p>${notHere(first)} <a href=${address(home())}>Go to the start</a>.</p></${Empty}>`;
}

/** @param {string | undefined} first */
const notHere = (first) => {
  if (first === "locks") return "Locks belong to a project: sign in with one of its service keys to see them.";
  return first === "projects" ? "Projects and keys need an admin token." : "";
};

function Account() {
  const current = session.value;
  const leave = () => void signOut().catch((error) => announce(messageOf(error)));
  return html`<div class="account">
    <div class="who">
      <strong>${current?.project_name ?? "All projects"}</strong>
      <span>${current?.kind === "admin_token" ? "admin token" : "key"} ${current?.name}</span>
    </div>
    <button type="button" class="quiet-button" aria-label=${`Use the ${theme.value === "dark" ? "light" : "dark"} theme`}
      title="Light or dark" onClick=${toggleTheme}><${Icon} name=${theme.value === "dark" ? "light" : "dark"} /></button>
    <button type="button" class="quiet-button" aria-label="Sign out" title="Sign out" onClick=${leave}><${Icon} name="out" /></button>
  </div>`;
}
