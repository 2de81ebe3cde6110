// How a terminal would show what is written: the colours and styles that control sequences ask for (ECMA-48, SGR). Pure.

/** Some characters that look alike. `look` are names, one each for a style or a colour: "bold fg-1 bg-#101010"; "" for none. */
export interface Run {
  readonly text: string;
  readonly look: string;
}

/** A line as it is shown. */
export type Line = readonly Run[];

const STYLES: Readonly<Record<number, string>> = { 1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "inverse", 9: "struck" };
const ENDS: Readonly<Record<number, readonly string[]>> = {
  21: ["bold"], 22: ["bold", "faint"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["struck"],
};
/** The six steps of each colour in the cube of 256. */
const CUBE = [0, 95, 135, 175, 215, 255];

/** What is written now looks like this, until a sequence says otherwise. */
export class Pen {
  look = "";
  private readonly styles = new Set<string>();
  private ink = "";
  private ground = "";

  /** Take a sequence `ESC [ parameters m`; what is none of its parts is passed over. */
  take(parameters: string): void {
    // Colours are written with colons or with semicolons: 38:2::R:G:B, 38;2;R;G;B.
    const parts = parameters.split(";");
    for (let at = 0; at < parts.length; at++) {
      const own = (parts[at] ?? "").split(":");
      const code = numberOf(own[0]);
      if (code === 38 || code === 48) {
        const isJoined = own.length > 1;
        const rest = isJoined ? own.slice(1) : parts.slice(at + 1);
        const [colour, used] = colourOf(rest, isJoined);
        if (colour !== "") this.set(code, colour);
        if (!isJoined) at += used;
      } else this.apply(code, own[1]);
    }
    const ends = [...this.styles, this.ink === "" ? "" : `fg-${this.ink}`, this.ground === "" ? "" : `bg-${this.ground}`];
    this.look = ends.filter(Boolean).join(" ");
  }

  private apply(code: number, more: string | undefined): void {
    const style = STYLES[code];
    if (code === 0) {
      this.styles.clear();
      this.ink = this.ground = "";
    } else if (code === 4 && more === "0") this.styles.delete("underline");
    else if (style !== undefined) this.styles.add(style);
    else if (ENDS[code] !== undefined) for (const each of ENDS[code]) this.styles.delete(each);
    else if (code >= 30 && code <= 37) this.ink = String(code - 30);
    else if (code === 39) this.ink = "";
    else if (code >= 40 && code <= 47) this.ground = String(code - 40);
    else if (code === 49) this.ground = "";
    else if (code >= 90 && code <= 97) this.ink = String(code - 90 + 8);
    else if (code >= 100 && code <= 107) this.ground = String(code - 100 + 8);
  }

  private set(code: number, colour: string): void {
    if (code === 38) this.ink = colour;
    else this.ground = colour;
  }
}

function numberOf(text: string | undefined): number {
  return text === undefined || text === "" ? 0 : /^\d{1,5}$/.test(text) ? Number(text) : -1;
}

/** A colour behind 38 or 48, and how many parts it took: "0" to "15", or "#rrggbb"; "" where it is none. */
function colourOf(parts: readonly string[], isJoined: boolean): readonly [string, number] {
  const kind = numberOf(parts[0]);
  if (kind === 5) return [parts[1] === undefined ? "" : indexed(numberOf(parts[1])), 2];
  if (kind !== 2) return ["", parts.length === 0 ? 0 : 1];
  // With colons the name of a colour space may stand before them.
  const from = isJoined && parts.length > 4 ? 2 : 1;
  return [hex(parts.slice(from, from + 3).map((part) => (part === "" && isJoined ? -1 : numberOf(part)))), 4];
}

function indexed(index: number): string {
  if (index < 0 || index > 255) return "";
  if (index < 16) return String(index);
  if (index >= 232) return hex(Array.from({ length: 3 }, () => 8 + (index - 232) * 10));
  const place = index - 16;
  return hex([Math.floor(place / 36), Math.floor(place / 6) % 6, place % 6].map((step) => CUBE[step] ?? 0));
}

function hex(values: readonly number[]): string {
  if (values.length !== 3 || values.some((value) => value < 0 || value > 255)) return "";
  return `#${values.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** The text alone. */
export function textOf(line: Line): string {
  return line.map(({ text }) => text).join("");
}

export function isSame(one: Line, other: Line): boolean {
  return one.length === other.length && one.every(({ text, look }, at) => text === other[at]?.text && look === other[at].look);
}
