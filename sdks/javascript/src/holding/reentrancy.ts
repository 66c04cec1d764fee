/**
 * Finds out whether the calling async context is inside a block of a lock. An inner block of the same lock would wait
 * for it without end (SDK-26, case 82). Needs a runtime with `AsyncLocalStorage`.
 *
 * What a block's body starts belongs to its context, even if the body does not await it.
 */

import { createAsyncStorage } from "../platform.ts";

interface OpenBlock {
  readonly owner: OpenBlocks;
  readonly key: string;
  outer: OpenBlock | undefined;
  left: boolean;
}

/** One for all clients, because the runtime visits every `AsyncLocalStorage` at each promise and never forgets one. */
const STORAGE = createAsyncStorage<OpenBlock>();

/** The open blocks of one client. */
export class OpenBlocks {
  /** Whether the caller runs inside a block of the lock `key`. */
  contains(key: string): boolean {
    for (let block = openBlock(STORAGE?.getStore()); block !== undefined; block = block.outer) {
      if (block.owner === this && block.key === key) return true;
      block.outer = openBlock(block.outer);
    }
    return false;
  }

  /** Runs `body` inside a block, which stays open until the body's promise has settled. */
  async run<T>(key: string, body: () => T | PromiseLike<T>): Promise<T> {
    if (STORAGE === null) return await body();
    const block: OpenBlock = { owner: this, key, outer: openBlock(STORAGE.getStore()), left: false };
    try {
      return await STORAGE.run(block, body);
    } finally {
      block.left = true;
    }
  }
}

/**
 * The innermost open block, from `block` outwards. Blocks that were left are dropped: a body that schedules the next block
 * would otherwise make an endless chain.
 */
function openBlock(block: OpenBlock | undefined): OpenBlock | undefined {
  let open = block;
  while (open?.left) open = open.outer;
  return open;
}
