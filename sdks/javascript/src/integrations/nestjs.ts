/**
 * NestJS: `VolcanoLocksModule` provides the client, and `@Exclusive()` lets a method run in one process at a time.
 *
 * The decorator replaces the method when its class is declared, so `@Cron()`, `@Interval()` and other callers get the
 * guarded method. It injects what it needs as a property of the class. An application that does not import the module
 * therefore fails to start, instead of running without locks.
 */

import {
  type BeforeApplicationShutdown,
  type DynamicModule,
  type FactoryProvider,
  Global,
  Inject,
  Module,
} from "@nestjs/common";
import { Client, type ClientOptions } from "../client.ts";
import type { ExclusiveOptions } from "../features/exclusive.ts";

/** Nest shows it if the module is missing. */
const RUNS = Symbol("VolcanoLocksModule.forRoot()");
const SHUTDOWN_SECONDS = 10;

export interface VolcanoLocksModuleOptions extends ClientOptions {
  /** How many seconds a shutdown waits for exclusive methods to end and release their locks. Defaults to 10. */
  shutdownSeconds?: number | undefined;
}

/** As in `VolcanoLocksModule.forRoot`, but returned by `useFactory` with what `inject` names. */
export type VolcanoLocksModuleAsyncOptions = Pick<DynamicModule, "imports"> &
  Pick<FactoryProvider<VolcanoLocksModuleOptions>, "inject" | "useFactory">;

/** The client of the application, and the exclusive methods that run now. */
class ExclusiveRuns implements BeforeApplicationShutdown {
  readonly client: Client;
  readonly #shutdownSeconds: number;
  readonly #running = new Set<Promise<unknown>>();

  constructor({ shutdownSeconds = SHUTDOWN_SECONDS, ...options }: VolcanoLocksModuleOptions) {
    this.client = new Client(options);
    this.#shutdownSeconds = shutdownSeconds;
  }

  async run<T>(start: () => Promise<T>): Promise<T> {
    const running = start();
    this.#running.add(running);
    try {
      return await running;
    } finally {
      this.#running.delete(running);
    }
  }

  /** Nest calls it on `app.close()`, and on a signal after `app.enableShutdownHooks()`. */
  async beforeApplicationShutdown(): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const timeUp = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, this.#shutdownSeconds * 1000);
    });
    await Promise.race([this.#ended(), timeUp]);
    clearTimeout(timer);
  }

  async #ended(): Promise<void> {
    while (this.#running.size > 0) await Promise.allSettled(this.#running);
  }
}

/**
 * Provides a `Client` to the whole application, and lets `@Exclusive()` use it.
 *
 * @example
 * @Module({ imports: [VolcanoLocksModule.forRoot(), ScheduleModule.forRoot()], providers: [Reports] })
 * class AppModule {}
 */
// biome-ignore lint/complexity/noStaticOnlyClass: the form of modules in Nest
export class VolcanoLocksModule {
  /** Options as for `new Client(…)`; by default `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY` name the service. */
  static forRoot(options: VolcanoLocksModuleOptions = {}): DynamicModule {
    return VolcanoLocksModule.forRootAsync({ useFactory: () => options });
  }

  /** Options from other providers, such as a configuration service. */
  static forRootAsync({ imports = [], inject = [], useFactory }: VolcanoLocksModuleAsyncOptions): DynamicModule {
    return {
      module: VolcanoLocksModule,
      imports,
      providers: [
        { provide: RUNS, inject, useFactory: async (...args) => new ExclusiveRuns(await useFactory(...args)) },
        { provide: Client, inject: [RUNS], useFactory: (runs: ExclusiveRuns) => runs.client },
      ],
      exports: [RUNS, Client],
    };
  }
}
Global()(VolcanoLocksModule);
Module({})(VolcanoLocksModule);

/** What Nest's `reflect-metadata` adds to `Reflect`. */
interface ReflectMetadata {
  getMetadataKeys(target: object): unknown[];
  getMetadata(key: unknown, target: object): unknown;
  defineMetadata(key: unknown, value: unknown, target: object): void;
}

/** What `@Exclusive()` decorates. */
// biome-ignore lint/suspicious/noExplicitAny: the arguments of any method
type Method = (...args: any[]) => unknown;

/**
 * Lets a method run in one process at a time. A call while the lock is held resolves with `undefined`; with
 * `onHeld: "raise"` it rejects with the `LockHeldError`, with `"wait"` it waits. Other options are those of
 * `client.locks.exclusive`. `key` may be a function of the method's arguments.
 *
 * @example
 * @Cron("0 3 * * *")
 * @Exclusive("rollup", { ttl: 60, holdAtLeast: 60 })
 * async rollup() {}
 */
export function Exclusive(
  key: string | ((...args: never[]) => string),
  options: ExclusiveOptions,
): <T extends Method>(target: object, name: string | symbol, descriptor: TypedPropertyDescriptor<T>) => void {
  const { onHeld = "skip" } = options;
  return (target, name, descriptor) => {
    const method = descriptor.value;
    if (method === undefined) throw new TypeError(`@Exclusive() decorates methods, and ${String(name)} is none`);
    const guarded = async function (this: { [RUNS]?: ExclusiveRuns }, ...args: never[]): Promise<unknown> {
      const runs = this[RUNS];
      if (runs === undefined) throw new Error(`${String(name)} is not called on a provider that Nest created`);
      const locked = runs.client.locks.exclusive(
        key,
        { ...options, onHeld },
        method.bind(this) as (...all: never[]) => unknown,
      );
      return runs.run(() => locked(...args));
    };
    Object.defineProperty(guarded, "name", { value: String(name), configurable: true });
    const metadata = Reflect as unknown as ReflectMetadata;
    for (const one of metadata.getMetadataKeys(method)) {
      metadata.defineMetadata(one, metadata.getMetadata(one, method), guarded);
    }
    descriptor.value = guarded as unknown as typeof method;
    Inject(RUNS)(target, RUNS);
  };
}
