/** The module `platform` for Node: see `platform.ts`. */

import { AsyncLocalStorage } from "node:async_hooks";

export { createNodeSender as createDefaultSender } from "./http/node_sender.ts";

export function createAsyncStorage<T>(): AsyncLocalStorage<T> | null {
  return new AsyncLocalStorage<T>();
}
