/**
 * Bounds the long requests (waits and event streams) of the process if the runtime caps its connections, so that
 * renewals and releases always have one (case 78).
 *
 * Bun serves 256 requests at a time in a process, or the number in its own variable. Node and Deno have no cap.
 */

const BUN_REQUESTS_MAX = 256;
/** The part of the cap that long requests may take. */
export const LONG_REQUEST_FRACTION = 0.75;

interface Globals {
  readonly Bun?: unknown;
  readonly process?: { readonly env?: Readonly<Record<string, string | undefined>> };
}

let inFlight = 0;

/** Reserves one long request. Returns the function that ends the reservation, or null if none is left. */
export function takeLongRequest(): (() => void) | null {
  if (inFlight >= longRequestsMax()) return null;
  inFlight += 1;
  let taken = true;
  return () => {
    if (taken) inFlight -= 1;
    taken = false;
  };
}

function longRequestsMax(): number {
  const { Bun, process } = globalThis as Globals;
  if (Bun === undefined) return Number.POSITIVE_INFINITY;
  const requestsMax = Number(process?.env?.BUN_CONFIG_MAX_HTTP_REQUESTS) || BUN_REQUESTS_MAX;
  return Math.floor(requestsMax * LONG_REQUEST_FRACTION);
}
