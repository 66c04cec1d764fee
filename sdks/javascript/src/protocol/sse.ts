/**
 * Server-sent events, read from the bytes of a stream, without a socket or a clock.
 *
 * A block ends with an empty line; what comes of a block that was never ended is no event. A block may tell an id alone:
 * that is a place to go on from. No block is longer than `EVENT_CHARACTERS_MAX`, whatever a server or proxy sends.
 */

export const EVENT_CHARACTERS_MAX = 65_536;
const LINE_END = /\r\n|\n|\r/;

/** One block that was ended. `data` is empty where it told none. */
export interface StreamEvent {
  readonly kind: string;
  readonly data: string;
  /** The last id told up to here, empty if none was. */
  readonly id: string;
}

/** The blocks of one stream, in order. */
export class EventReader {
  readonly #decoder = new TextDecoder();
  #unread = "";
  #afterReturn = false;
  #length = 0;
  #kind = "";
  #data: string[] = [];
  #id = "";

  /** The blocks that `bytes` ended. `RangeError` for one that is too long. */
  read(bytes: Uint8Array): StreamEvent[] {
    const came = this.#decoder.decode(bytes, { stream: true });
    // The "\n" of a "\r\n" that came in two pieces ends no second line.
    const text = this.#afterReturn && came.startsWith("\n") ? came.slice(1) : came;
    if (came !== "") this.#afterReturn = came.endsWith("\r");
    const lines = (this.#unread + text).split(LINE_END);
    this.#unread = lines.pop() ?? "";
    const events = lines.map((line) => this.#line(line)).filter((event) => event !== null);
    this.#bound(this.#unread.length);
    return events;
  }

  #line(line: string): StreamEvent | null {
    if (line === "") return this.#ended();
    if (line.startsWith(":")) return null;
    this.#bound(line.length);
    this.#length += line.length;
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (field === "event") this.#kind = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #ended(): StreamEvent {
    const event = { kind: this.#kind || "message", data: this.#data.join("\n"), id: this.#id };
    this.#kind = "";
    this.#data = [];
    this.#length = 0;
    return event;
  }

  #bound(more: number): void {
    if (this.#length + more <= EVENT_CHARACTERS_MAX) return;
    throw new RangeError(`an event is longer than ${EVENT_CHARACTERS_MAX} characters`);
  }
}
