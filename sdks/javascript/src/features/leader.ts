/**
 * Leader election: campaign for the lock, run a function while it is held, campaign again after a loss (SDK-13).
 *
 * Each run starts with its own lease and ends before the next campaign starts, so runs of one `lead` never overlap.
 *
 * Limit: a run that ignores its signal is not stopped, and this caller does not campaign again until it ends.
 */

import type { BlockOutcome } from "../holding/block.ts";

/** Result of `lead`: the function's return value, or the error that ended it. */
export type LeadResult<T> = { readonly data: T; readonly error: null } | { readonly data: null; readonly error: Error };

/** Runs blocks, one after another, until one ends for a reason other than a lost lease; returns how that one ended. */
export async function runCampaigns<T>(campaign: () => Promise<BlockOutcome<T>>): Promise<BlockOutcome<T>> {
  for (;;) {
    const outcome = await campaign();
    if (!outcome.lost) return outcome;
  }
}
