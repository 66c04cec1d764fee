/**
 * The client's log: passes messages to the caller's logger (SDK-25). An error of the logger, thrown or rejected, is
 * dropped and changes no outcome. No message contains an owner token or the service key (SDK-8).
 */

/** What the client calls to log. `console` is one, and so are the loggers of common libraries. */
export interface Logger {
  /** Acquires, renewals, releases and waits. */
  debug(message: string): unknown;
  /** Losses and failed renewals. */
  warn(message: string): unknown;
}

/** Logs to a logger, or nowhere. */
export class Log {
  readonly #logger: Logger | undefined;

  constructor(logger: Logger | undefined) {
    this.#logger = logger;
  }

  debug(message: string): void {
    this.#write("debug", message);
  }

  warn(message: string): void {
    this.#write("warn", message);
  }

  /** Logs how `work` ends, and returns its result. A failure is logged at `failureLevel`. */
  async outcome<T>(what: string, work: Promise<T>, failureLevel: () => keyof Logger = () => "debug"): Promise<T> {
    if (this.#logger === undefined) return work;
    try {
      const result = await work;
      this.debug(`${what}: done`);
      return result;
    } catch (error) {
      this.#write(failureLevel(), `${what}: ${(error as Error).message}`);
      throw error;
    }
  }

  #write(level: keyof Logger, message: string): void {
    try {
      const written = this.#logger?.[level](`volcano-locks: ${message}`);
      Promise.resolve(written).catch(() => {});
    } catch {
      // The logger's own failure.
    }
  }
}

/** Checks the `logger` option. */
export function checkedLogger(logger: unknown): Logger | undefined {
  if (logger === undefined) return undefined;
  const like = Object(logger) as Partial<Logger>;
  if (typeof like.debug === "function" && typeof like.warn === "function") return logger as Logger;
  throw new TypeError("logger must have the functions debug and warn, like console");
}
