// What a screen reader says: changes, and a countdown at a few moments, never every second.

import { h } from "./dom.ts";

/** Seconds before an end at which it is said again. */
const MARKS_S = [60, 30, 15, 10, 5];

export class Speech {
  readonly root: HTMLElement;
  private readonly calm = h("div", { role: "status", class: "spoken" });
  private readonly urgent = h("div", { role: "alert", class: "spoken" });
  private readonly heard = new Map<string, number>();

  constructor() {
    this.root = h("div", {}, this.calm, this.urgent);
  }

  /** Say it when whatever is being said is over. */
  say(text: string): void {
    this.calm.textContent = text;
  }

  /** Say it at once. */
  warn(text: string): void {
    this.urgent.textContent = text;
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
