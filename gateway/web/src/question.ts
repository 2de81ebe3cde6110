// Whether a turn or a place with another model may end: asked before anything ends.

import { h, write } from "./dom.ts";

export class Question {
  readonly root: HTMLDialogElement;
  private readonly heading = h("h2", { id: "question" });
  private readonly text = h("p");
  private readonly yes: HTMLButtonElement;
  private model = "";

  /** `join` is called with the model where the answer is yes. */
  constructor(join: (model: string) => void) {
    const no = h("button", { class: "quiet", autofocus: true, onclick: () => this.root.close() }, "Keep it");
    this.yes = h("button", { class: "primary", onclick: () => this.root.close("yes") });
    this.root = h("dialog", { class: "question", "aria-labelledby": "question" }, this.heading, this.text);
    this.root.append(h("div", { class: "next" }, no, this.yes));
    this.root.addEventListener("close", () => {
      if (this.root.returnValue === "yes") join(this.model);
    });
  }

  /** `has` is what would end: "you have a turn with canvas". */
  ask(model: string, has: string): void {
    this.model = model;
    this.root.returnValue = "";
    write(this.heading, `${has.charAt(0).toUpperCase()}${has.slice(1)}`);
    write(this.text, `It is open in another window. If you join ${model}, it ends.`);
    write(this.yes, `End it and join ${model}`);
    if (!this.root.open) this.root.showModal();
  }
}
