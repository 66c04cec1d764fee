// The bar that shrinks while a lease runs out.
import { html } from "../lib.js";
import { duration, wholeSeconds } from "../time.js";

/** @param {{ lock: import("../../types.js").Lock, now: number }} props */
export function TimeLeft({ lock, now }) {
  const leftSeconds = wholeSeconds(lock.expiresMs - now);
  const share = Math.min(1, Math.max(0, (lock.expiresMs - now) / 1000 / (lock.ttlSeconds || 1)));
  const kind = share < 0.2 ? "low" : share < 0.5 ? "half" : "full";
  return html`<div class="time-left time-left-${kind}">
    <span class="bar" aria-hidden="true"><span style=${{ transform: `scaleX(${share.toFixed(3)})` }}></span></span>
    <span class="time-left-text">${duration(leftSeconds)}</span>
  </div>`;
}
