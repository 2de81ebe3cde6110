// Keys on the screen, for who has no keyboard: a button for each key that the model names.

import { h, show } from "./dom.ts";
import { isPrintable } from "./typing.ts";
import type { Input } from "./wire.ts";

const LABELS: Readonly<Record<string, string>> = {
  ArrowLeft: "←",
  ArrowUp: "↑",
  ArrowRight: "→",
  ArrowDown: "↓",
  " ": "Space",
  Escape: "Esc",
  Backspace: "⌫",
  Enter: "⏎",
};

const SPOKEN: Readonly<Record<string, string>> = {
  ArrowLeft: "Left",
  ArrowUp: "Up",
  ArrowRight: "Right",
  ArrowDown: "Down",
  Escape: "Escape",
  Backspace: "Backspace",
  Enter: "Enter",
};

export class Pad {
  readonly root = h("div", { class: "pad", role: "group", "aria-label": "Keys", hidden: true });
  private readonly send: (input: Input) => void;
  private readonly down = new Set<string>();
  private shown = "";

  constructor(send: (input: Input) => void) {
    this.send = send;
    // A finger that stays on a key is no wish for a menu.
    this.root.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  /** The keys of a model, in the order in which it names them; none: no pad. */
  offer(keys: readonly string[]): void {
    if (keys.join("\n") === this.shown) return;
    for (const key of [...this.down]) this.release(key);
    this.shown = keys.join("\n");
    this.root.replaceChildren(...keys.map((key) => this.button(key)));
    show(this.root, keys.length > 0);
  }

  private button(key: string): HTMLElement {
    const label = LABELS[key] ?? key;
    const button = h("button", { class: "quiet key", type: "button", "aria-label": SPOKEN[key] ?? label }, label);
    button.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.press(key);
    });
    for (const kind of ["pointerup", "pointercancel", "pointerleave"]) {
      button.addEventListener(kind, () => this.release(key));
    }
    // By a switch, or a screen reader, there is a click and no finger.
    button.addEventListener("click", (event) => {
      if (event.detail !== 0) return;
      this.press(key);
      this.release(key);
    });
    return button;
  }

  private press(key: string): void {
    if (this.down.has(key)) return;
    this.down.add(key);
    this.send({ type: "key", key, down: true, repeat: false });
    if (isPrintable(key)) this.send({ type: "text", text: key });
  }

  private release(key: string): void {
    if (this.down.delete(key)) this.send({ type: "key", key, down: false, repeat: false });
  }
}
