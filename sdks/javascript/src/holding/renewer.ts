/**
 * The background renewer of a held lock (SDK-3, SDK-6).
 */

import { type Clock, waitUntil } from "../clock.ts";
import { LOCK_OWNERSHIP_LOST, LockOwnershipLostError } from "../errors.ts";
import type { Lease } from "../protocol/lease.ts";
import type { ConfirmedLease } from "../protocol/operations.ts";
import type { Hold } from "./hold.ts";

/** Sends one renewal. */
export type Renew = (lease: Lease, timeoutSeconds: number, signal: AbortSignal) => Promise<ConfirmedLease>;

/** Renews `hold` until it is left or lost. Never rejects: an unexpected error is a loss (SDK-6, case 9). */
export async function runRenewals(hold: Hold, clock: Clock, renew: Renew): Promise<void> {
  try {
    await renewUntilEnded(hold, clock, renew);
  } catch (error) {
    const message = `the lease of ${hold.lease.key} is lost: its renewer failed`;
    hold.lose(new LockOwnershipLostError(message, { code: LOCK_OWNERSHIP_LOST, cause: error }));
  }
}

async function renewUntilEnded(hold: Hold, clock: Clock, renew: Renew): Promise<void> {
  for (;;) {
    const action = hold.nextAction();
    if (action.kind === "left" || action.kind === "lost") return;
    if (action.kind === "wait") {
      await waitUntil(clock, action.until, hold.ended);
      continue;
    }
    try {
      hold.renewed(await renew(hold.lease, action.timeoutSeconds, hold.renewalSignal));
    } catch (error) {
      if (error instanceof LockOwnershipLostError) hold.lose(error);
      else hold.failed(error);
    }
  }
}
