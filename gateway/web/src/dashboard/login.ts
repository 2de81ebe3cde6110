// The login: a token, and where one gets it.

import { h, show, write } from "../dom.ts";
import { CallError, login, type Me } from "./api.ts";

const UNKNOWN = { message: "That did not work.", next_step: "Try again." };

export class Login {
  readonly root: HTMLElement;
  private readonly heading = h("h1", { tabindex: "-1" }, "Log in to gpufleet");
  private readonly why = h("p", { class: "trouble", role: "status" });
  private readonly field = h("input", {
    id: "token",
    type: "password",
    name: "token",
    autocomplete: "current-password",
    autocapitalize: "off",
    spellcheck: "false",
    required: true,
    "aria-describedby": "token-error token-help",
    placeholder: "gf_…",
  });
  private readonly error = h("p", { class: "wrong", id: "token-error", role: "alert" });
  private readonly button = h("button", { class: "primary", type: "submit" }, "Log in");
  private readonly entered: (me: Me) => void;

  constructor(entered: (me: Me) => void) {
    this.entered = entered;
    const form = h(
      "form",
      { class: "login-form", novalidate: true, onsubmit: (event) => void this.submit(event) },
      // What password managers file it under.
      h("input", { type: "text", name: "username", autocomplete: "username", value: "gpufleet", hidden: true }),
      h("label", { for: "token" }, "Your token"),
      this.field,
      this.error,
      this.button,
    );
    this.root = h(
      "main",
      { class: "login", id: "login" },
      this.heading,
      this.why,
      form,
      h(
        "section",
        { class: "help", id: "token-help" },
        h("h2", {}, "Where to get one"),
        h("p", {}, "If you started gpufleet on this machine, yours is the admin's:"),
        h("pre", {}, h("code", {}, "cat ~/.local/state/gpufleet/scheduler/admin.token")),
        h("p", {}, "Everybody else asks an admin, who makes one with:"),
        h("pre", {}, h("code", {}, "gpuctl token create NAME --role user")),
        h("p", { class: "hint" }, "A token of role viewer may look, one of role user may submit and change its own jobs."),
      ),
    );
    show(this.why, false);
    show(this.error, false);
  }

  /** Ask for a token, and say why. */
  open(why: string): void {
    write(this.why, why);
    show(this.why, why !== "");
    this.complain("");
    this.field.value = "";
    this.field.focus();
  }

  private async submit(event: Event): Promise<void> {
    event.preventDefault();
    if (this.button.disabled) return;
    const token = this.field.value.trim();
    if (token === "") {
      this.complain("Enter your token.");
      return;
    }
    this.button.disabled = true;
    write(this.button, "Logging in …");
    try {
      const me = await login(token);
      this.field.value = "";
      this.complain("");
      this.entered(me);
    } catch (error) {
      const { message, next_step } = error instanceof CallError ? error.problem : UNKNOWN;
      this.complain(`${sentence(message)} ${sentence(next_step)}`);
    } finally {
      this.button.disabled = false;
      write(this.button, "Log in");
    }
  }

  private complain(words: string): void {
    write(this.error, words);
    show(this.error, words !== "");
    this.field.setAttribute("aria-invalid", String(words !== ""));
    if (words !== "") this.field.focus();
  }
}

/** With a capital and a full stop, unless it ends with what is to be typed. */
export function sentence(text: string): string {
  if (text === "") return "";
  const begun = text.startsWith("gpuctl") ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?:…)]$|: [^.]*$/.test(begun) ? begun : `${begun}.`;
}
