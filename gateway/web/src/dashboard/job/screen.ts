// The lines of output that are shown: a bounded list of what came last, from several ranks and both streams. Pure.

import { isSame, type Line } from "./colours.ts";
import type { Read } from "./lines.ts";

/** Lines that the page holds. */
export const LINES_MAX = 5_000;

export interface ShownLine {
  /** Where it is from: "1/0/STREAM_STDOUT". */
  readonly key: string;
  runs: Line;
  /** What is said of the output, and was not written by the job. */
  readonly isNote: boolean;
  /** Whether it is another one, or another text, than `changes` told last. */
  isChanged: boolean;
  /** Whether `changes` has told it. */
  isShown: boolean;
}

export class Screen {
  private lines: ShownLine[] = [];
  private readonly open = new Map<string, ShownLine>();
  private removed: ShownLine[] = [];
  private lost = 0;

  /** Lines that came and are shown no more. */
  get dropped(): number {
    return this.lost;
  }

  /** What was read of one stream. */
  add(key: string, { lines, open }: Read): void {
    const going = this.open.get(key);
    const rest = [...lines];
    if (going !== undefined) {
      const ended = rest.shift();
      this.write(going, ended ?? open);
      if (ended === undefined) return;
      this.open.delete(key);
    }
    for (const runs of rest) this.push({ key, runs, isNote: false, isChanged: true, isShown: false });
    if (open.length > 0) {
      const line = { key, runs: open, isNote: false, isChanged: true, isShown: false };
      this.open.set(key, line);
      this.push(line);
    }
    this.trim();
  }

  /** A word of the page's own between the lines; the line that goes on there is over. */
  note(key: string, text: string): void {
    this.open.delete(key);
    this.push({ key, runs: [{ text, look: "" }], isNote: true, isChanged: true, isShown: false });
    this.trim();
  }

  clear(): void {
    this.removed.push(...this.lines.filter(({ isShown }) => isShown));
    this.lines = [];
    this.open.clear();
    this.lost = 0;
  }

  /** What has to be taken away, made or written anew since it was asked last. */
  changes(): { readonly removed: readonly ShownLine[]; readonly changed: readonly ShownLine[] } {
    const removed = this.removed;
    this.removed = [];
    const changed = this.lines.filter((line) => line.isChanged);
    for (const line of changed) {
      line.isChanged = false;
      line.isShown = true;
    }
    return { removed, changed };
  }

  private write(line: ShownLine, runs: Line): void {
    if (isSame(line.runs, runs)) return;
    line.runs = runs;
    line.isChanged = true;
  }

  private push(line: ShownLine): void {
    this.lines.push(line);
    // Not at each line: to cut the front off costs as much as all that is there.
    if (this.lines.length > 2 * LINES_MAX) this.trim();
  }

  private trim(): void {
    const excess = this.lines.length - LINES_MAX;
    if (excess <= 0) return;
    const gone = this.lines.slice(0, excess);
    this.lines = this.lines.slice(excess);
    this.lost += gone.filter(({ isNote }) => !isNote).length;
    for (const line of gone) {
      if (this.open.get(line.key) === line) this.open.delete(line.key);
      if (line.isShown) this.removed.push(line);
    }
  }
}
