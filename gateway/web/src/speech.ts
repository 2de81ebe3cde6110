// What a screen reader says: changes, and a countdown at a few moments, never every second.

import { h } from "./dom.ts";

/** Seconds before an end at which it is said again. */
const MARKS_S = [60, 30, 15, 10, 5];

/** What was said stays in the page for so long: who reads the page later must not find old news. */
const KEPT_MS = 4_000;

export class Speech {
  readonly root: HTMLElement;
  private readonly calm = h("div", { role: "status", class: "spoken" });
  private readonly urgent = h("div", { role: "alert", class: "spoken" });
  private readonly heard = new Map<string, number>();
  private clearAt: number | null = null;

  constructor() {
    this.root = h("div", {}, this.calm, this.urgent);
  }

  /** Say it when whatever is being said is over. */
  say(text: string): void {
    this.put(this.calm, text);
  }

  /** Say it at once. */
  warn(text: string): void {
    this.put(this.urgent, text);
  }

  /** Called several times a second. */
  tick(now: number): void {
    if (this.clearAt === null || now < this.clearAt) return;
    this.clearAt = null;
    this.calm.textContent = this.urgent.textContent = "";
  }

  /** What is said anew is all that there is: a place in line is no news any more when a turn begins. */
  private put(region: HTMLElement, text: string): void {
    const other = region === this.calm ? this.urgent : this.calm;
    other.textContent = "";
    region.textContent = text;
    this.clearAt = performance.now() + KEPT_MS;
  }

  /** Whether a countdown has come to a moment at which it is told; each moment is one once for each `what`. */
  isDue(what: string, seconds: number): boolean {
    const mark = MARKS_S.filter((each) => seconds <= each).at(-1);
    if (mark === undefined || this.heard.get(what) === mark) return false;
    this.heard.set(what, mark);
    return true;
  }

  /** A countdown is over: the next one is told from its beginning. */
  forget(what: string): void {
    this.heard.delete(what);
  }
}
