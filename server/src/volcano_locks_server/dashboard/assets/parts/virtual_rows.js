// A long list of which only the rows in view are in the document.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";

const ROWS_BEYOND = 6;

/**
 * @template T
 * @param {{ rows: T[], rowHeight: number, label: string, columns: number, head: any, keyOf: (row: T) => string,
 *   row: (row: T) => any, onShown: (rows: T[]) => void }} props
 */
export function VirtualRows({ rows, rowHeight, label, columns, head, keyOf, row, onShown }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [place, setPlace] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setPlace({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(place.top / rowHeight) - ROWS_BEYOND);
  const last = Math.min(rows.length, Math.ceil((place.top + place.height) / rowHeight) + ROWS_BEYOND);
  const shown = rows.slice(first, last);
  useLayoutEffect(() => onShown(shown));
  return html`<div class="rows" role="table" aria-label=${label} aria-rowcount=${rows.length + 1} aria-colcount=${columns}
    ref=${box} tabindex="0" onKeyDown=${moveFocus}>
    ${head}
    <div class="rows-space" role="rowgroup" style=${{ height: `${rows.length * rowHeight}px` }}>
      ${shown.map(
        (one, index) => html`<div key=${keyOf(one)} class="row" role="row" aria-rowindex=${first + index + 2}
          style=${{ transform: `translateY(${(first + index) * rowHeight}px)` }}>${row(one)}</div>`,
      )}
    </div>
  </div>`;
}

/**
 * Arrow keys move from the link of a row to that of the next.
 * @param {KeyboardEvent} event
 */
function moveFocus(event) {
  const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
  if (!step || !(event.currentTarget instanceof HTMLElement)) return;
  const links = [...event.currentTarget.querySelectorAll("a")].sort(
    (a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top,
  );
  const at = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  const next = at < 0 ? links[0] : links[at + step];
  if (!next) return;
  event.preventDefault();
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}
