// Instants and durations: the server's clock, and how people read them.
import { signal } from "./lib.js";

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

// The difference of the server's clock to this one lies between these, by all responses so far.
let leastMs = -Infinity;
let mostMs = Infinity;
let differenceMs = 0;

/**
 * Learn the server's clock from a response. `Date` has whole seconds, so each response only narrows a range.
 * @param {string | null} date
 * @param {number} sentMs
 * @param {number} receivedMs
 */
export function noteServerDate(date, sentMs, receivedMs) {
  const serverMs = date === null ? Number.NaN : Date.parse(date);
  if (Number.isNaN(serverMs)) return;
  const least = serverMs - receivedMs;
  const most = serverMs + 999 - sentMs;
  if (least > mostMs || most < leastMs) {
    leastMs = least; // one of the clocks was set
    mostMs = most;
  } else {
    leastMs = Math.max(leastMs, least);
    mostMs = Math.min(mostMs, most);
  }
  if (differenceMs < leastMs || differenceMs > mostMs) differenceMs = (leastMs + mostMs) / 2;
}

/** The server's time in milliseconds since 1970. */
export const serverNow = () => Date.now() + differenceMs;

/** The server's time, set once a second while the page is visible. */
export const nowMs = signal(serverNow());

export function startClock() {
  setInterval(() => {
    if (!document.hidden) nowMs.value = serverNow();
  }, 1000);
}

/** @param {string | null | undefined} instant */
export const toMs = (instant) => (instant ? Date.parse(instant) : Number.NaN);

/**
 * A duration in its two largest units: `9 s`, `3 min 20 s`, `2 h 5 min`, `4 d 6 h`.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return "0 s";
  if (seconds < 10 && !Number.isInteger(seconds)) return `${Math.round(seconds * 10) / 10} s`;
  const whole = Math.round(seconds);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return pair(whole, MINUTE, "min", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "min");
  return pair(whole, DAY, "d", HOUR, "h");
}

/**
 * @param {number} seconds
 * @param {number} large
 * @param {string} largeName
 * @param {number} small
 * @param {string} smallName
 */
function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** @param {number} ms */
export const wholeSeconds = (ms) => (Number.isNaN(ms) ? Number.NaN : Math.max(0, Math.floor(ms / 1000)));

/**
 * @param {number} ms an instant
 * @param {number} now
 */
export const ago = (ms, now) => (Number.isNaN(ms) ? "–" : `${duration(wholeSeconds(now - ms))} ago`);

const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const shortClock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayAndMonth = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const dayMonthYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/**
 * The local time of an instant; with the day if it is another one.
 * @param {number} ms
 * @param {number} now
 */
export function localTime(ms, now) {
  if (Number.isNaN(ms)) return "–";
  const date = new Date(ms);
  const sameDay = date.toDateString() === new Date(now).toDateString();
  return sameDay ? clock.format(date) : `${dayAndMonth.format(date)}, ${clock.format(date)}`;
}

/** @param {number} ms */
export const localDay = (ms) => (Number.isNaN(ms) ? "–" : dayMonthYear.format(new Date(ms)));

/** @param {number} ms */
export const hourAndMinute = (ms) => shortClock.format(new Date(ms));

/** @param {number} ms */
export const localDayAndMinute = (ms) => `${localDay(ms)}, ${hourAndMinute(ms)}`;

/** @param {number} ms */
export const utc = (ms) => (Number.isNaN(ms) ? "" : new Date(ms).toISOString());

const numbers = new Intl.NumberFormat("en-GB");

/** @param {number} value */
export const count = (value) => numbers.format(value);
