/**
 * Finds out whether the calling async context is inside a block of a lock. An inner block of the same lock would wait
 * for it without end (SDK-26, case 82). Works where the runtime has `AsyncLocalStorage`.
 *
 * What a block's body starts belongs to its context, even if the body does not await it.
 */

import { createAsyncStorage } from "../platform.ts";

interface OpenBlock {
  readonly owner: OpenBlocks;
  readonly key: string;
  readonly outer: OpenBlock | undefined;
  left: boolean;
}

/** One for all clients, because the runtime visits every `AsyncLocalStorage` at each promise and never forgets one. */
const STORAGE = createAsyncStorage<OpenBlock>();

/** The open blocks of one client. */
export class OpenBlocks {
  /** Whether the caller runs inside a block of the lock `key`. */
  contains(key: string): boolean {
    for (let block = STORAGE?.getStore(); block !== undefined; block = block.outer) {
      if (block.owner === this && block.key === key && !block.left) return true;
    }
    return false;
  }

  /** Runs a block's body as being inside the block, until its promise has settled. */
  async run<T>(key: string, body: () => T | PromiseLike<T>): Promise<T> {
    if (STORAGE === null) return await body();
    const block: OpenBlock = { owner: this, key, outer: STORAGE.getStore(), left: false };
    try {
      return await STORAGE.run(block, body);
    } finally {
      block.left = true;
    }
  }
}
