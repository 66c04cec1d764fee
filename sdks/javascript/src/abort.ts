/**
 * Listens to a caller's `AbortSignal` with one listener, however many blocks, waits and requests share the signal.
 *
 * Node warns of a leak at the eleventh listener, and programs share one signal for everything that a shutdown ends.
 */

interface Shared {
  readonly calls: Set<() => void>;
  readonly onAbort: () => void;
}

const SHARED: WeakMap<AbortSignal, Shared> = new WeakMap();

/** Calls `call` when `signal` aborts; not if it has aborted already. Returns a function that removes the call. */
export function whenAborted(signal: AbortSignal | undefined | null, call: () => void): () => void {
  if (signal === undefined || signal === null) return () => {};
  const shared = SHARED.get(signal) ?? share(signal);
  const once = (): void => call();
  shared.calls.add(once);
  return () => {
    shared.calls.delete(once);
    if (shared.calls.size > 0 || SHARED.get(signal) !== shared) return;
    SHARED.delete(signal);
    signal.removeEventListener("abort", shared.onAbort);
  };
}

function share(signal: AbortSignal): Shared {
  const calls = new Set<() => void>();
  const onAbort = (): void => {
    for (const call of [...calls]) if (calls.has(call)) call();
  };
  const shared = { calls, onAbort };
  SHARED.set(signal, shared);
  signal.addEventListener("abort", onAbort);
  return shared;
}
