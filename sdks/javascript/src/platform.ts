/**
 * What differs between runtimes: the default sender and `AsyncLocalStorage`. This is the module for Bun, Deno, edge runtimes
 * and bundlers; the build for the export condition `node` replaces it with `platform.node.ts`.
 */

import type { AsyncLocalStorage } from "node:async_hooks";

export { createRuntimeFetchSender as createDefaultSender } from "./http/fetch_sender.ts";

type StorageClass = new <T>() => AsyncLocalStorage<T>;

interface Globals {
  readonly AsyncLocalStorage?: StorageClass;
  readonly process?: { getBuiltinModule?(name: string): { AsyncLocalStorage?: StorageClass } | undefined };
}

/** A new `AsyncLocalStorage`, or null where the runtime has none. */
export function createAsyncStorage<T>(): AsyncLocalStorage<T> | null {
  const { AsyncLocalStorage, process } = globalThis as Globals;
  const Storage = AsyncLocalStorage ?? process?.getBuiltinModule?.("node:async_hooks")?.AsyncLocalStorage;
  return Storage === undefined ? null : new Storage<T>();
}
