// A small chart of the last hour: areas or lines over minutes, with a readout of the minute under the pointer.
import { html, useEffect, useRef, useState } from "../lib.js";
import { count, hourAndMinute } from "../time.js";

const HEIGHT = 96;
const TOP = 10;
const BOTTOM = 20;
const LEFT = 2;

/**
 * @typedef {{ name: string, kind: "main" | "second" | "third" | "bad", values: (number | null)[] }} Line
 */

/**
 * `values` are one number for each step, the latest last; null where nothing is known.
 * @param {{ title: string, unit: string, lines: Line[], endMs: number, stepMs: number, limit?: number | null,
 *   format?: (value: number) => string }} props
 */
export function Chart({ title, unit, lines, endMs, stepMs, limit = null, format = count }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(320);
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(Math.max(160, element.clientWidth)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const steps = Math.max(2, ...lines.map((line) => line.values.length));
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const most = Math.max(...known, limit ?? 0, 0);
  const top = niceTop(most);
  /** @param {number} step */
  const x = (step) => LEFT + (step / (steps - 1)) * (width - 2 * LEFT);
  /** @param {number} value */
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  /** @param {PointerEvent} event */
  const point = (event) => {
    const left = box.current?.getBoundingClientRect().left ?? 0;
    const step = Math.round(((event.clientX - left - LEFT) / (width - 2 * LEFT)) * (steps - 1));
    setAt(Math.max(0, Math.min(steps - 1, step)));
  };
  const shownAt = at ?? steps - 1;
  // The first line is drawn last, over the others; one that is zero throughout would only cover the axis.
  const drawn = lines.filter((line) => line.values.some((value) => value)).reverse();
  const latest = lines.map((line) => `${line.name} ${text(line.values.at(-1), format)}`).join(", ");
  return html`<figure class="chart">
    <figcaption><span class="strong">${title}</span> <span class="quiet">${unit}</span></figcaption>
    <p class="chart-values">${lines.map(
      (line) => html`<span class="chart-value"><i class="swatch swatch-${line.kind}"></i>${line.name}${" "}
        <strong>${text(line.values[shownAt], format)}</strong></span>`,
    )}
      <span class="quiet chart-at">${at === null ? "last minute" : hourAndMinute(endMs - (steps - 1 - at) * stepMs)}</span></p>
    <div ref=${box} onPointerMove=${point} onPointerLeave=${() => setAt(null)}>
      <svg width=${width} height=${HEIGHT} role="img" aria-label=${`${title}, ${unit}, the last hour; in the last minute: ${latest}`}>
        <path class="chart-grid" d=${`M0 ${y(0)}H${width}M0 ${y(top)}H${width}`} />
        <text class="chart-text" x=${width} y=${y(top) - 3} text-anchor="end">${format(top)}</text>
        ${limit !== null && html`<path class="chart-limit" d=${`M0 ${y(limit)}H${width}`} />`}
        ${drawn.map(
          (line) => html`<g class="chart-${line.kind}">
            ${line.kind === "main" && html`<path class="chart-area" d=${area(line.values, x, y)} />`}
            <path class="chart-line" d=${path(line.values, x, y)} /></g>`,
        )}
        ${at !== null && html`<path class="chart-cursor" d=${`M${x(at)} ${TOP - 4}V${y(0)}`} />`}
        <text class="chart-text" x="0" y=${HEIGHT - 5}>${hourAndMinute(endMs - (steps - 1) * stepMs)}</text>
        <text class="chart-text" x=${width} y=${HEIGHT - 5} text-anchor="end">now</text>
      </svg>
    </div>
  </figure>`;
}

/**
 * @param {number | null | undefined} value
 * @param {(value: number) => string} format
 */
const text = (value, format) => (value === null || value === undefined ? "–" : format(value));

/** The smallest of 1, 2, 5, 10, 20 … that is not below `most`. @param {number} most */
function niceTop(most) {
  if (most <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= most) ?? most;
}

/**
 * A line with gaps where nothing is known.
 * @param {(number | null)[]} values
 * @param {(step: number) => number} x
 * @param {(value: number) => number} y
 */
function path(values, x, y) {
  let isDown = false;
  return values
    .map((value, step) => {
      if (value === null) {
        isDown = false;
        return "";
      }
      const command = isDown ? "L" : "M";
      isDown = true;
      return `${command}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    })
    .join("");
}

/**
 * @param {(number | null)[]} values
 * @param {(step: number) => number} x
 * @param {(value: number) => number} y
 */
function area(values, x, y) {
  const line = path(
    values.map((value) => value ?? 0),
    x,
    y,
  );
  return line && `${line}L${x(values.length - 1).toFixed(1)} ${y(0)}L${x(0)} ${y(0)}Z`;
}
