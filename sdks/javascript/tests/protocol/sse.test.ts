/** SDK-14: parsing an event stream. */

import { describe, expect, it } from "vitest";
import { EVENT_CHARACTERS_MAX, type SseEvent, SseParser } from "../../src/protocol/sse.ts";

function read(...pieces: Array<string | Uint8Array>): SseEvent[] {
  const reader = new SseParser();
  const encoder = new TextEncoder();
  return pieces.flatMap((piece) => reader.parse(typeof piece === "string" ? encoder.encode(piece) : piece));
}

const TEXT = "\uFEFFid: 7\n: hello\n\nevent: acquired\ndata: {\ndata:}\nid: ü8\n\nretry: 1000\ndata\n\nid:9\n";

const EVENTS = [
  { kind: "message", data: "", id: "7" },
  { kind: "acquired", data: "{\n}", id: "ü8" },
  { kind: "message", data: "", id: "ü8" },
];

describe("SDK-14: events of a stream", () => {
  it.each(["\n", "\r\n", "\r"])("are parsed with line ends %j, for every split into chunks", (end) => {
    const bytes = new TextEncoder().encode(TEXT.replaceAll("\n", end));
    expect(read(bytes)).toEqual(EVENTS);
    expect(read(...Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(EVENTS);
    for (let cut = 0; cut < bytes.length; cut += 1) {
      expect(read(bytes.subarray(0, cut), bytes.subarray(cut))).toEqual(EVENTS);
    }
  });

  it("\\r\\n is one line end, split between chunks or not", () => {
    expect(read("data: a\r", "\n", "\n")).toHaveLength(1);
    expect(read("data: a\r", "\r\n")).toHaveLength(1);
    expect(read("data: a\r", "\r", "\n", "data: b\r\r")).toHaveLength(2);
  });

  it("have a maximum length, per line and in total; comments do not count", () => {
    const half = "x".repeat(EVENT_CHARACTERS_MAX / 2);
    expect(() => read("data: ", half, half)).toThrow(RangeError);
    expect(() => read(`data: ${half}\n`, `data: ${half}\n`)).toThrow(RangeError);
    expect(read(`data: ${half}\n\n`, `data: ${half}\n\n`)).toHaveLength(2);
    expect(read(...Array<string>(9).fill(`: ${half}\n`), "data: a\n\n")).toHaveLength(1);
  });

  it("an id with a NUL is ignored", () => {
    expect(read("id: 1\nid: a\0b\n\n")[0]?.id).toBe("1");
  });
});
