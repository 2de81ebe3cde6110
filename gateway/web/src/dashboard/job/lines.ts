// From the bytes of one stream to the lines that are shown: as text with its colours, whatever the bytes are. Pure.

import type { Stream, StreamPosition } from "../../generated/messages.ts";
import { Pen, type Line } from "./colours.ts";

/** A longer line is cut here, so that one line cannot be all that the page has room for. */
export const LINE_CHARACTERS_MAX = 2_000;
/** Changes of colour in a line; behind them all of it looks alike. */
export const RUNS_MAX = 200;
/** A control sequence that is longer than this is none: it is dropped as far as it came. */
const SEQUENCE_CHARACTERS_MAX = 256;

export interface Read {
  /** Lines that are complete now, oldest first. */
  readonly lines: readonly Line[];
  /** The line that goes on; empty where the last one was complete. */
  readonly open: Line;
}

/** Reads one stream of one rank. Bytes may end anywhere: within a character, a line or a control sequence. */
export class LineReader {
  private readonly decoder = new TextDecoder();
  private sequence = "";
  private readonly pen = new Pen();
  private runs: { text: string; readonly look: string }[] = [];
  private length = 0;
  /** Characters of the line that were cut. */
  private cut = 0;
  /** A carriage return was read: what comes next overwrites the line, as on a terminal, unless it is its end. */
  private isReturned = false;

  push(bytes: Uint8Array): Read {
    const text = this.sequence + this.decoder.decode(bytes, { stream: true });
    this.sequence = "";
    const lines: Line[] = [];
    for (let at = 0; at < text.length; at++) {
      const character = text[at] ?? "";
      if (character === "\n") {
        lines.push(this.taken());
        this.begin();
      } else if (character === "\r") this.isReturned = true;
      else if (character === "\u001b") {
        const length = sequenceLength(text, at);
        if (length === undefined) {
          this.sequence = text.slice(at, at + SEQUENCE_CHARACTERS_MAX);
          break;
        }
        // Of all sequences those alone that say how what follows looks.
        const colours = /^\u001b\[([\d;:]*)m$/u.exec(text.slice(at, at + length));
        if (colours !== null) this.pen.take(colours[1] ?? "");
        at += length - 1;
      } else if (character >= " " && character !== "\u007f" || character === "\t") this.add(character);
    }
    return { lines, open: this.taken() };
  }

  private add(character: string): void {
    if (this.isReturned) this.begin();
    if (this.length >= LINE_CHARACTERS_MAX) {
      this.cut += 1;
      return;
    }
    this.length += 1;
    const last = this.runs.at(-1);
    if (last !== undefined && (last.look === this.pen.look || this.runs.length >= RUNS_MAX)) last.text += character;
    else this.runs.push({ text: character, look: this.pen.look });
  }

  private begin(): void {
    this.runs = [];
    this.length = 0;
    this.cut = 0;
    this.isReturned = false;
  }

  private taken(): Line {
    const runs = this.runs.map((run) => ({ ...run }));
    return this.cut === 0 ? runs : [...runs, { text: ` … ${this.cut.toLocaleString("en")} more characters`, look: "" }];
  }
}

/** Characters of the control sequence that begins here; undefined while it has not ended. */
function sequenceLength(text: string, at: number): number | undefined {
  const rest = text.slice(at, at + SEQUENCE_CHARACTERS_MAX);
  const kind = rest[1];
  if (kind === undefined) return undefined;
  // CSI: parameters, and one letter at the end. OSC, DCS and their like: text up to BEL or ESC \. All others: two.
  if (kind === "[") return ended(rest, /^\u001b\[[\u0020-\u003f]*[\u0040-\u007e]/u, /^\u001b\[[\u0020-\u003f]*$/u);
  if ("]PX^_".includes(kind)) return ended(rest, /^\u001b.[^\u0007\u001b]*(?:\u0007|\u001b\\)/u, /^\u001b.[^\u0007\u001b]*\u001b?$/u);
  return "()*+#%".includes(kind) ? (rest.length < 3 ? undefined : 3) : 2;
}

function ended(rest: string, whole: RegExp, begun: RegExp): number | undefined {
  const found = whole.exec(rest);
  if (found !== null) return found[0].length;
  return rest.length < SEQUENCE_CHARACTERS_MAX && begun.test(rest) ? undefined : 2;
}

/** Which stream of which rank and attempt. */
export function keyOf(attempt: number, rank: number, stream: string): string {
  return `${attempt}/${rank}/${stream}`;
}

/** How far each stream was read: what is asked for after a lost connection, and what came twice. */
export class Positions {
  private readonly read = new Map<string, { attempt: number; rank: number; stream: Stream; offset: number }>();

  /** What of a piece is new; nothing where all of it was read. `skipped`: bytes before it that never came. */
  take(attempt: number, rank: number, stream: Stream, offset: number, bytes: Uint8Array): { fresh: Uint8Array; skipped: number } {
    const key = keyOf(attempt, rank, stream);
    const known = this.read.get(key)?.offset ?? offset;
    const end = offset + bytes.length;
    if (end > known || !this.read.has(key)) this.read.set(key, { attempt, rank, stream, offset: Math.max(known, end) });
    return { fresh: bytes.subarray(Math.min(bytes.length, Math.max(0, known - offset))), skipped: Math.max(0, offset - known) };
  }

  /** As StreamOutput takes them. */
  told(): readonly StreamPosition[] {
    return [...this.read.values()].map(({ offset, ...rest }) => ({ ...rest, offset: String(offset) }));
  }
}

/** The bytes behind base64. */
export function bytesOf(base64: string): Uint8Array {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}
