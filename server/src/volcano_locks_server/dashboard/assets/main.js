// Starts the dashboard.

import { hasExpired, loadSession, messageOf, session, signIn } from "./api.js";
import { effect, html, render } from "./lib.js";
import { resetFilter } from "./pages/locks.js";
import { signInFault } from "./pages/sign_in.js";
import { announce } from "./parts/basics.js";
import { resetRoute, startRoute, takeCode } from "./route.js";
import { Shell } from "./shell.js";
import { startTheme } from "./theme.js";
import { startClock } from "./time.js";
import { resetUsual } from "./usual.js";

/** The next session may be one of another project or role, so nothing of the one that ended is kept. */
function forgetEndedSessions() {
  let wasSignedIn = false;
  effect(() => {
    if (wasSignedIn && !session.value) {
      resetRoute();
      resetFilter();
      resetUsual();
      announce("");
      document.title = "volcano-locks";
    }
    wasSignedIn = Boolean(session.value);
  });
}

const code = takeCode();
startTheme();
startClock();
startRoute();
forgetEndedSessions();
const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Shell} />`, app);

try {
  if (code) await signIn({ code });
  else await loadSession();
} catch (error) {
  // A link that was used before may come from a reload: an existing session goes on.
  await loadSession().catch(() => {});
  signInFault.value = messageOf(error);
  hasExpired.value = false;
}
