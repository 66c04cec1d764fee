// Starts the dashboard.

import { hasExpired, loadSession, messageOf, signIn } from "./api.js";
import { html, render } from "./lib.js";
import { signInFault } from "./pages/sign_in.js";
import { startRoute, takeCode } from "./route.js";
import { Shell } from "./shell.js";
import { startTheme } from "./theme.js";
import { startClock } from "./time.js";

const code = takeCode();
startTheme();
startClock();
startRoute();
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
