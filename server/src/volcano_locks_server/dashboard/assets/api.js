// Requests to the server. The session's cookie is the credential; scripts never see it.
import { signal } from "./lib.js";
import { noteServerDate } from "./time.js";

/** @typedef {import("../types.js").Session} Session */

/** The address of the server: this page is at BASE/ui. */
export const base = location.pathname.replace(/\/ui\/?$/, "");

/** The session; undefined until the server was asked, null without one. */
export const session = signal(/** @type {Session | null | undefined} */ (undefined));

/** Whether the sign-in page is shown because a session ended. */
export const hasExpired = signal(false);

export class ApiError extends Error {
  /**
   * @param {number} status 0 if there was no response
   * @param {string} code
   * @param {string} message
   * @param {number} retryAfterSeconds
   */
  constructor(status, code, message, retryAfterSeconds = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/**
 * Send a request. Throws ApiError, also for a response that is an error.
 * @param {string} method
 * @param {string} path
 * @param {{ headers?: Record<string, string>, body?: unknown, signal?: AbortSignal }} options
 * @returns {Promise<Response>}
 */
export async function send(method, path, { headers = {}, body, signal: aborted } = {}) {
  const fields = { ...headers };
  if (method !== "GET" && session.value) fields["X-Volcano-CSRF"] = session.value.csrf_token;
  if (body !== undefined) fields["Content-Type"] = "application/json";
  /** @type {RequestInit} */
  const request = { method, headers: fields, credentials: "same-origin", cache: "no-store", redirect: "error" };
  if (body !== undefined) request.body = JSON.stringify(body);
  if (aborted) request.signal = aborted;
  const sentMs = Date.now();
  let response;
  try {
    response = await fetch(base + path, request);
  } catch (error) {
    if (aborted?.aborted) throw error;
    throw new ApiError(0, "no_response", "The server does not respond. Is it running, and is the network up?");
  }
  noteServerDate(response.headers.get("Date"), sentMs, Date.now());
  if (!response.ok) throw await toError(response, path);
  return response;
}

/**
 * @param {Response} response
 * @param {string} path
 */
async function toError(response, path) {
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401 && path !== "/ui/session" && session.value) {
    hasExpired.value = true;
    session.value = null;
  }
  const message = typeof problem.error === "string" ? problem.error : `The server answered ${response.status}.`;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  return new ApiError(response.status, String(problem.code ?? "unknown"), message, retryAfter);
}

/**
 * @param {string} path
 * @param {AbortSignal} [aborted]
 * @returns {Promise<any>}
 */
export async function get(path, aborted) {
  return (await send("GET", path, aborted ? { signal: aborted } : {})).json();
}

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @returns {Promise<any>} the body of the response, null if it has none
 */
export async function change(method, path, body) {
  const response = await send(method, path, { body });
  return response.status === 204 ? null : response.json();
}

/** Ask the server for the session of the cookie. */
export async function loadSession() {
  try {
    session.value = await get("/ui/session");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    session.value = null;
  }
}

/** @param {{ code: string } | { credential: string }} proof */
export async function signIn(proof) {
  session.value = await change("POST", "/ui/session", proof);
  hasExpired.value = false;
}

export async function signOut() {
  await change("DELETE", "/ui/session").catch((error) => {
    if (error.status !== 401) throw error;
  });
  session.value = null;
}

/** Whether the session may free locks of its project. */
export const mayManage = () =>
  session.value?.permissions?.some((one) => one === "*" || one === "locks.manage") ?? false;

export const isAdmin = () => session.value?.kind === "admin_token";

/** @param {unknown} error */
export const messageOf = (error) => {
  const text = error instanceof Error ? error.message : String(error);
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
};
