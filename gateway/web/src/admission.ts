// The way into a model that is not open to everybody, on its card: a form for the pass phrase, or the way to the login.

import { h, show, write } from "./dom.ts";
import type { Line } from "./words.ts";

/** As many characters as the gateway takes. */
const CHARS_MAX = "200";

export class Admission {
  readonly root: HTMLElement;
  private readonly form: HTMLFormElement;
  private readonly input: HTMLInputElement;
  private readonly login: HTMLAnchorElement;
  private readonly error: HTMLElement;

  /** `join` is called with the pass phrase that was written. */
  constructor(model: string, join: (phrase: string) => void) {
    const [field, error] = [`phrase-${model}`, `phrase-error-${model}`];
    this.input = h("input", { id: field, type: "password", maxlength: CHARS_MAX, autocomplete: "off", "aria-describedby": error });
    this.form = h(
      "form",
      { hidden: true },
      h("label", { for: field }, "Pass phrase"),
      this.input,
      h("button", { class: "primary", "aria-label": `Join ${model} with the pass phrase` }, "Join"),
    );
    this.error = h("p", { class: "trouble", id: error, role: "alert" });
    this.login = h("a", { href: "dashboard", target: "_blank", rel: "noopener", hidden: true }, "Log in, then come back and join");
    this.root = h("div", { class: "admission", hidden: true }, this.form, this.error, this.login);
    show(this.error, false);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.input.value === "") this.complain("Write the pass phrase first.");
      else join(this.input.value);
    });
  }

  /** Ask for what the model wants, or say what was wrong with what was said. */
  ask(access: Line["access"], wrong: string): void {
    this.input.value = "";
    show(this.root, true);
    show(this.form, access === "pass-phrase");
    show(this.login, access === "login");
    this.complain(wrong);
    if (access === "login") this.login.focus();
    else this.input.focus();
  }

  /** Nothing is asked any more. */
  close(): void {
    show(this.root, false);
    this.input.value = "";
  }

  get isOpen(): boolean {
    return !this.root.hidden;
  }

  private complain(words: string): void {
    write(this.error, words);
    show(this.error, words !== "");
    this.input.setAttribute("aria-invalid", String(words !== ""));
    if (words !== "") this.input.focus();
  }
}
