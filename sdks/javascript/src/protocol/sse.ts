/**
 * Parses server-sent events from the bytes of a stream, without I/O.
 *
 * An event ends with an empty line; an unterminated one is dropped. An event may consist of an id alone, which is a
 * position to resume from. An event longer than `EVENT_CHARACTERS_MAX` is an error.
 */

export const EVENT_CHARACTERS_MAX = 65_536;
const LINE_END = /\r\n|\n|\r/;

/** One event. `data` is empty if it had none. */
export interface SseEvent {
  readonly kind: string;
  readonly data: string;
  /** The last id of the stream so far; empty if there was none. */
  readonly id: string;
}

/** Parses one stream. */
export class SseParser {
  readonly #decoder = new TextDecoder();
  #unread = "";
  #afterReturn = false;
  #length = 0;
  #kind = "";
  #data: string[] = [];
  #id = "";

  /** Returns the events that `bytes` completed. Throws a `RangeError` if one is too long. */
  parse(bytes: Uint8Array): SseEvent[] {
    const decoded = this.#decoder.decode(bytes, { stream: true });
    // A "\r\n" split between two chunks is one line end.
    const text = this.#afterReturn && decoded.startsWith("\n") ? decoded.slice(1) : decoded;
    if (decoded !== "") this.#afterReturn = decoded.endsWith("\r");
    const lines = (this.#unread + text).split(LINE_END);
    this.#unread = lines.pop() ?? "";
    const events = lines.map((line) => this.#parseLine(line)).filter((event) => event !== null);
    this.#checkLength(this.#unread.length);
    return events;
  }

  #parseLine(line: string): SseEvent | null {
    if (line === "") return this.#completeEvent();
    if (line.startsWith(":")) return null;
    this.#checkLength(line.length);
    this.#length += line.length;
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (field === "event") this.#kind = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #completeEvent(): SseEvent {
    const event = { kind: this.#kind || "message", data: this.#data.join("\n"), id: this.#id };
    this.#kind = "";
    this.#data = [];
    this.#length = 0;
    return event;
  }

  #checkLength(more: number): void {
    if (this.#length + more <= EVENT_CHARACTERS_MAX) return;
    throw new RangeError(`event longer than ${EVENT_CHARACTERS_MAX} characters`);
  }
}
