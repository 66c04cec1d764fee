// Small parts that pages share.

import { messageOf } from "../api.js";
import { html, signal, useEffect, useRef, useState } from "../lib.js";
import { localTime, nowMs, utc } from "../time.js";

/** What screen readers announce next. */
export const announcement = signal("");

/** @param {string} text */
export function announce(text) {
  announcement.value = text;
}

/** @param {{ title: string, lead?: any, children?: any }} props */
export function Heading({ title, lead, children }) {
  useEffect(() => {
    document.title = `${title} · volcano-locks`;
  }, [title]);
  return html`<header class="heading">
    <div><h1 tabindex="-1">${title}</h1>${lead && html`<p class="lead">${lead}</p>`}</div>
    <div class="heading-actions">${children}</div>
  </header>`;
}

/** @param {{ title?: any, note?: any, children?: any, class?: string }} props */
export function Card({ title, note, children, class: extra = "" }) {
  return html`<section class="card ${extra}">${title && html`<h2>${title}${note && html` <small>${note}</small>`}</h2>`}${children}</section>`;
}

/** @param {{ kind?: "warn" | "bad" | "good" | "plain", children?: any, title?: string }} props */
export const Badge = ({ kind = "plain", children, title }) =>
  html`<span class="badge badge-${kind}" title=${title}>${children}</span>`;

/** @param {{ error: unknown, retry?: () => void }} props */
export const Fault = ({ error, retry }) =>
  html`<div class="notice notice-bad" role="alert">
    <p>${messageOf(error)}</p>
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;

/** @param {{ ms: number }} props */
export const When = ({ ms }) =>
  Number.isNaN(ms)
    ? html`<span class="quiet">–</span>`
    : html`<time datetime=${utc(ms)} title=${utc(ms)}>${localTime(ms, nowMs.value)}</time>`;

/** @param {{ text: string, label: string }} props */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      announce(`${label}: copied`);
      setTimeout(() => setDone(false), 1500);
    } catch {
      announce("Copying is not allowed here: select the text instead.");
    }
  };
  return html`<button type="button" class="copy" aria-label=${`Copy ${label}`} onClick=${copy}>${done ? "Copied" : "Copy"}</button>`;
}

/** @param {{ text: string, label: string }} props */
export const Code = ({ text, label }) =>
  html`<div class="code"><pre tabindex="0" aria-label=${label}><code>${text}</code></pre><${Copy} text=${text} label=${label} /></div>`;

/** @param {{ title: string, children?: any }} props */
export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

/**
 * Read something when the page opens, and again with `again`.
 * @template T
 * @param {() => Promise<T>} read
 * @param {unknown[]} inputs
 * @returns {{ value: T | null, error: unknown, again: () => Promise<void> }}
 */
export function useRead(read, inputs) {
  const [state, setState] = useState(/** @type {{ value: T | null, error: unknown }} */ ({ value: null, error: null }));
  const turn = useRef(0);
  const again = async () => {
    turn.current += 1;
    const mine = turn.current;
    try {
      const value = await read();
      if (mine === turn.current) setState({ value, error: null });
    } catch (error) {
      if (mine === turn.current) setState((old) => ({ value: old.value, error }));
    }
  };
  useEffect(() => {
    void again();
    return () => {
      turn.current += 1;
    };
  }, inputs);
  return { ...state, again };
}

/**
 * Call something every `seconds` while the page is visible.
 * @param {() => void} call
 * @param {number} seconds
 */
export function useEvery(call, seconds) {
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}
