// The last day of a lock as a band: a block for each hold, a mark where a hold was lost.
import { html, useEffect, useRef, useState } from "../lib.js";
import { duration, hourAndMinute, toMs } from "../time.js";
import { ending, heldSeconds } from "./hold_ending.js";

/** @typedef {import("../../types.js").Hold} Hold */

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
const TOP = 8;
const HEIGHT = 36;

const LEGEND = ["hold", "free", "lost"].map(
  (kind) => html`<span class="key key-${kind}"></span>${kind === "hold" ? "held" : kind} `,
);

/**
 * `to` is the end of the band. Before the begin of the first hold that is known, nothing says whether the lock was free.
 * @param {{ holds: Hold[], to: number, known: number }} props
 */
export function Band({ holds, to, known }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(800);
  const [pointed, setPointed] = useState(/** @type {Hold | null} */ (null));
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(Math.max(200, element.clientWidth)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const from = to - DAY_MS;
  /** @param {number} ms */
  const x = (ms) => ((Math.max(from, Math.min(to, ms)) - from) / DAY_MS) * width;
  const since = x(known);
  const tickHours = width < 480 ? 6 : 3;
  const lost = holds.filter((hold) => hold.ended === "expired" || hold.ended === "forced").length;
  return html`<div class="band" ref=${box}>
    <svg width=${width} height=${TOP + HEIGHT + 24} role="img"
      aria-label=${`${holds.length} holds in the last 24 hours, ${lost} of them lost; the table below lists them`}>
      <rect class="band-unknown" x="0.5" y=${TOP + 0.5} width=${width - 1} height=${HEIGHT - 1} rx="6" />
      <rect class="band-free" x=${since} y=${TOP} width=${width - since} height=${HEIGHT} rx="6" />
      ${holds.map((hold) => {
        const begin = x(toMs(hold.began_at));
        const end = hold.ended_at ? x(toMs(hold.ended_at)) : width;
        const isLost = hold.ended === "expired" || hold.ended === "forced";
        return html`<g key=${hold.fencing_token} onMouseEnter=${() => setPointed(hold)} onMouseLeave=${() => setPointed(null)}>
          <rect class=${`band-hold ${hold.ended === null ? "band-now" : ""}`}
            x=${begin} y=${TOP} width=${Math.max(2, end - begin - 1)} height=${HEIGHT} rx="3" />
          ${isLost && html`<path class="band-lost" d=${`M${end - 4} ${TOP - 7}h8l-4 6zM${end - 1} ${TOP}h2v${HEIGHT}h-2z`} />`}
        </g>`;
      })}
      ${ticks(from, to, tickHours).map(
        (ms) => html`<g key=${ms}>
        <path class="band-tick" d=${`M${x(ms)} ${TOP + HEIGHT}v5`} />
        <text class="band-time" x=${x(ms)} y=${TOP + HEIGHT + 19} text-anchor="middle">${hourAndMinute(ms)}</text></g>`,
      )}
      <text class="band-time" x=${width} y=${TOP + HEIGHT + 19} text-anchor="end">now</text>
    </svg>
    <p class="band-words" aria-hidden="true">${pointed ? words(pointed) : LEGEND}${!pointed && since > 0 && html`<span class="quiet">· no entry before ${hourAndMinute(known)}</span>`}</p>
  </div>`;
}

/** @param {Hold} hold */
function words(hold) {
  const { words: how, detail } = ending(hold);
  const from = hourAndMinute(toMs(hold.began_at));
  const ended = `${how}${detail && ` ${detail}`}`;
  return html`<strong>${hold.holder ?? "no label"}</strong> from ${from} for ${duration(heldSeconds(hold))}: ${ended}`;
}

/**
 * The whole local hours between two instants, far enough from both ends for their text.
 * @param {number} from
 * @param {number} to
 * @param {number} everyHours
 */
function ticks(from, to, everyHours) {
  const first = new Date(from);
  first.setHours(first.getHours() + 1, 0, 0, 0);
  const found = [];
  for (let ms = first.getTime(); ms < to; ms += HOUR_MS) {
    const isFar = ms - from > HOUR_MS * 0.7 && to - ms > HOUR_MS * everyHours * 0.4;
    if (new Date(ms).getHours() % everyHours === 0 && isFar) found.push(ms);
  }
  return found;
}
