/**
 * Leading for as long as one can: campaign, run while the lock is held, campaign again when it was lost (SDK-13).
 *
 * Each run begins with a lease of its own and has ended before the next campaign begins, so no two runs of one `lead`
 * overlap.
 *
 * Not promised: that a run which ignores its signal ends. Nobody leads for this caller until it does.
 */

import type { BlockEnd } from "../holding/block.ts";

/** What `lead` resolves with: what the function returned, or what ended it. */
export type LeadResult<T> = { readonly data: T; readonly error: null } | { readonly data: null; readonly error: Error };

/** Blocks, one after the other, until one ends with anything but the loss of its lease. Rejects only as `campaign` does. */
export async function leading<T>(campaign: () => Promise<BlockEnd<T>>): Promise<LeadResult<T>> {
  for (;;) {
    const { result, lost, contention } = await campaign();
    if (!lost) return { data: result.data, error: contention ?? result.error } as LeadResult<T>;
  }
}
