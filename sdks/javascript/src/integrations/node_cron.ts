/**
 * node-cron 4.4 and later: of all processes with the same distributed task, one runs each fire.
 *
 * node-cron asks its coordinator with a key that names the task and the fire time. The lock of a fire is not released
 * when the run ends, because a busy process, or one with a late clock, may ask later. If the lock service does not
 * respond, node-cron skips the fire (`coordinator-error`).
 */

import type { RunCoordinator } from "node-cron";
import { Client } from "../client.ts";
import { checkedOptions, checkedTtl, type OptionNames } from "../protocol/arguments.ts";

const HOLD_SECONDS = 300;

export interface LockCoordinatorOptions {
  /** Defaults to a client with the settings of `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`. */
  client?: Client | undefined;
  /**
   * Whole seconds that the lock of a fire stays held, 5 to 7,776,000: how late a process may be. Defaults to 300. A longer
   * `distributedLease` of a task applies instead.
   */
  holdSeconds?: number | undefined;
}

const OPTION_NAMES: OptionNames<LockCoordinatorOptions> = { client: true, holdSeconds: true };

/**
 * Creates a coordinator for `cron.setRunCoordinator(…)` or for the task option `runCoordinator`.
 *
 * @example
 * cron.setRunCoordinator(lockCoordinator());
 * cron.schedule("0 3 * * *", rollup, { name: "rollup", distributed: true });
 */
export function lockCoordinator(options: LockCoordinatorOptions = {}): RunCoordinator {
  checkedOptions(options, OPTION_NAMES, "a coordinator");
  const holdSeconds = checkedTtl(options.holdSeconds ?? HOLD_SECONDS);
  const { locks } = options.client ?? new Client();
  return {
    async shouldRun(key: string, ttlMs: number): Promise<boolean> {
      const { acquired, error } = await locks.acquire(key, { ttl: Math.max(holdSeconds, Math.ceil(ttlMs / 1000)) });
      if (error !== null) throw error;
      return acquired;
    },
  };
}
