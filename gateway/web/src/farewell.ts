// Why a session has ended, and what can be done next.

import { h, show, write } from "./dom.ts";
import type { Ended } from "./state.ts";
import { TELLING, ending } from "./words.ts";

export class Farewell {
  readonly root: HTMLElement;
  readonly heading = h("h1", { tabindex: "-1" });
  private readonly text = h("p", { class: "lead" });
  private readonly message = h("p", { class: "said" });
  private readonly again: HTMLButtonElement;
  private readonly save: HTMLButtonElement;

  constructor(joinAgain: () => void, choose: () => void, save: () => void) {
    this.again = h("button", { class: "primary", onclick: joinAgain });
    this.save = h("button", { class: "text", onclick: save }, "Save the last picture");
    const other = h("button", { class: "quiet", onclick: choose }, "All models");
    this.root = h(
      "main",
      { class: "farewell" },
      this.heading,
      this.text,
      this.message,
      h("div", { class: "next" }, this.again, other),
      this.save,
    );
  }

  update(model: string, ended: Ended, hasPicture: boolean): void {
    const words = ending(ended.reason);
    write(this.heading, words.title);
    write(this.text, words.text || ended.message);
    write(this.message, ended.message);
    show(this.message, ended.message !== "" && words.text !== "" && TELLING.has(ended.reason));
    write(this.again, ended.reason === "MOVED" ? "Go on here" : `Join ${model} again`);
    show(this.save, hasPicture);
    show(this.again, words.mayJoinAgain);
  }
}
