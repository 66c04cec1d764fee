// A hold of the history in words.
import { quoted } from "../text.js";
import { localTime, nowMs, toMs } from "../time.js";

/** @typedef {import("../../types.js").Hold} Hold */

/** How a hold ended, in words. @param {Hold} hold */
export function ending(hold) {
  if (hold.ended === null) return { kind: /** @type {const} */ ("good"), words: "holds it now", detail: "" };
  if (hold.ended === "released") return { kind: /** @type {const} */ ("plain"), words: "released", detail: "" };
  if (hold.ended === "expired")
    return { kind: /** @type {const} */ ("bad"), words: "lost: not renewed in time", detail: lastRenewal(hold) };
  const by = hold.ended_by ? `by ${hold.ended_by}` : "";
  return {
    kind: /** @type {const} */ ("bad"),
    words: "forced free",
    detail: [by, hold.reason ? quoted(hold.reason) : ""].filter(Boolean).join(": "),
  };
}

/** @param {Hold} hold */
function lastRenewal(hold) {
  if (hold.renewals === 0) return "never renewed";
  return hold.renewed_at ? `last renewed ${localTime(toMs(hold.renewed_at), nowMs.peek())}` : "";
}

/** @param {Hold} hold */
export const heldSeconds = (hold, now = nowMs.value) =>
  hold.ended === null ? (now - toMs(hold.began_at)) / 1000 : hold.held_seconds;
