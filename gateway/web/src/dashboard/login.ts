// The login: by a password or with a provider where the scheduler has them, and by a token always.

import { h, show, write } from "../dom.ts";
import { beginLogin, CallError, login, loginByPassword, waysToLogIn, type Me, type Problem, type Ways } from "./api.ts";

const UNKNOWN = { message: "That did not work.", next_step: "Try again." };
const RETRY_MS = 2_000;

/** A longer address is not come back to from the provider's page. */
const VIEW_CHARS_MAX = 1_000;

export class Login {
  readonly root: HTMLElement;
  private readonly heading = h("h1", { tabindex: "-1" }, "Log in to gpufleet");
  private readonly why = h("p", { class: "trouble", role: "status" });
  private readonly provider = new Provider((problem) => this.tell(problem));
  private readonly password: PasswordForm;
  private readonly token: TokenForm;
  private opened = 0;

  constructor(entered: (me: Me) => void) {
    const inside = (me: Me) => {
      this.opened += 1;
      this.password.clear();
      this.token.clear();
      entered(me);
    };
    this.password = new PasswordForm(inside);
    this.token = new TokenForm(inside);
    this.root = h("main", { class: "login", id: "login" }, this.heading, this.why, this.provider.root, this.password.root, this.token.root, help());
    show(this.why, false);
    this.offer({ has_passwords: false, provider: "", problem: null });
  }

  /** Ask who it is, and say why. */
  open(why: string): void {
    write(this.why, why);
    show(this.why, why !== "");
    this.password.clear();
    this.token.clear();
    this.focus();
    void this.ask();
  }

  /** Ask which ways there are, until it is said or somebody is in. */
  private async ask(): Promise<void> {
    const mine = (this.opened += 1);
    while (mine === this.opened) {
      try {
        const ways = await waysToLogIn();
        if (mine !== this.opened) return;
        const wasAtToken = document.activeElement === this.token.field && this.token.field.value === "";
        this.offer(ways);
        if (ways.problem !== null) this.tell(ways.problem);
        if (wasAtToken) this.focus();
        return;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  private offer(ways: Ways): void {
    this.provider.offer(ways.provider);
    show(this.password.root, ways.has_passwords);
    const hasOthers = ways.has_passwords || ways.provider !== "";
    this.token.call(hasOthers ? "Log in with token" : "Log in");
    this.root.classList.toggle("has-ways", hasOthers);
  }

  private focus(): void {
    (this.password.root.hidden ? (this.provider.root.hidden ? this.token.field : this.provider.button) : this.password.field).focus();
  }

  private tell(problem: Pick<Problem, "message" | "next_step">): void {
    write(this.why, inSentences(problem));
    show(this.why, true);
  }
}

/** The button that leads to the provider's page. */
class Provider {
  readonly button = h("button", { class: "primary", type: "button", onclick: () => void this.go() });
  readonly root = h("p", { class: "login-provider" }, this.button);
  private readonly refused: (problem: Pick<Problem, "message" | "next_step">) => void;

  constructor(refused: (problem: Pick<Problem, "message" | "next_step">) => void) {
    this.refused = refused;
  }

  offer(name: string): void {
    write(this.button, `Log in with ${name}`);
    show(this.root, name !== "");
  }

  private async go(): Promise<void> {
    this.button.disabled = true;
    try {
      const view = location.hash.length <= VIEW_CHARS_MAX ? location.hash : "";
      const { address } = await beginLogin(view);
      if (!/^https?:\/\//i.test(address)) throw new Error("no address of the web");
      location.assign(address);
    } catch (error) {
      this.refused(error instanceof CallError ? error.problem : UNKNOWN);
    } finally {
      this.button.disabled = false;
    }
  }
}

/** Fields, one error for them, and a button: what both forms do with it. */
abstract class Form {
  abstract readonly root: HTMLElement;
  protected readonly error: HTMLElement;
  protected readonly button = h("button", { class: "primary", type: "submit" });
  private readonly entered: (me: Me) => void;
  private words = "";

  constructor(errorId: string, entered: (me: Me) => void) {
    this.error = h("p", { class: "wrong", id: errorId, role: "alert" });
    this.entered = entered;
    show(this.error, false);
  }

  call(words: string): void {
    this.words = words;
    write(this.button, words);
  }

  clear(): void {
    this.complain("");
    for (const each of this.secrets()) each.value = "";
  }

  protected abstract secrets(): readonly HTMLInputElement[];
  /** The field that is wrong when something is. */
  protected abstract wrong(field: string): HTMLInputElement;
  /** What is missing, if anything; else the call that logs in. */
  protected abstract asked(): { readonly missing: string; readonly field: string } | (() => Promise<Me>);

  protected async submit(event: Event): Promise<void> {
    event.preventDefault();
    if (this.button.disabled) return;
    const ask = this.asked();
    if (typeof ask !== "function") {
      this.complain(ask.missing, ask.field);
      return;
    }
    this.button.disabled = true;
    write(this.button, "Logging in …");
    try {
      this.entered(await ask());
    } catch (error) {
      const problem = error instanceof CallError ? error.problem : { ...UNKNOWN, field: "" };
      this.complain(inSentences(problem), problem.field);
    } finally {
      this.button.disabled = false;
      write(this.button, this.words);
    }
  }

  private complain(words: string, field = ""): void {
    write(this.error, words);
    show(this.error, words !== "");
    for (const each of this.secrets()) each.removeAttribute("aria-invalid");
    const wrong = this.wrong(field);
    wrong.setAttribute("aria-invalid", String(words !== ""));
    if (words !== "") wrong.focus();
  }
}

class PasswordForm extends Form {
  readonly root: HTMLElement;
  readonly field = h("input", { id: "user", type: "text", name: "username", autocomplete: "username", autocapitalize: "off", spellcheck: "false", required: true });
  private readonly password = h("input", {
    id: "password",
    type: "password",
    name: "password",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "password-error",
  });

  constructor(entered: (me: Me) => void) {
    super("password-error", entered);
    this.call("Log in with password");
    this.root = h(
      "form",
      { class: "login-form", novalidate: true, onsubmit: (event) => void this.submit(event) },
      h("label", { for: "user" }, "User"),
      this.field,
      h("label", { for: "password" }, "Password"),
      this.password,
      this.error,
      this.button,
    );
  }

  protected secrets(): readonly HTMLInputElement[] {
    return [this.password];
  }

  protected wrong(field: string): HTMLInputElement {
    return field === "user" ? this.field : this.password;
  }

  protected asked(): { readonly missing: string; readonly field: string } | (() => Promise<Me>) {
    const user = this.field.value.trim();
    const password = this.password.value;
    this.field.removeAttribute("aria-invalid");
    if (user === "") return { missing: "Enter your user name.", field: "user" };
    if (password === "") return { missing: "Enter your password.", field: "password" };
    return () => loginByPassword(user, password);
  }
}

class TokenForm extends Form {
  readonly root: HTMLElement;
  readonly field = h("input", {
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

  constructor(entered: (me: Me) => void) {
    super("token-error", entered);
    this.root = h(
      "form",
      { class: "login-form login-token", novalidate: true, onsubmit: (event) => void this.submit(event) },
      // What password managers file it under.
      h("input", { type: "text", name: "username", autocomplete: "username", value: "gpufleet", hidden: true }),
      h("label", { for: "token" }, "Your token"),
      this.field,
      this.error,
      this.button,
    );
  }

  protected secrets(): readonly HTMLInputElement[] {
    return [this.field];
  }

  protected wrong(): HTMLInputElement {
    return this.field;
  }

  protected asked(): { readonly missing: string; readonly field: string } | (() => Promise<Me>) {
    const token = this.field.value.trim();
    return token === "" ? { missing: "Enter your token.", field: "token" } : () => login(token);
  }
}

function help(): HTMLElement {
  return h(
    "section",
    { class: "help", id: "token-help" },
    h("h2", {}, "Where to get a token"),
    h("p", {}, "If you started gpufleet on this machine, yours is the admin's:"),
    h("pre", {}, h("code", {}, "cat ~/.local/state/gpufleet/scheduler/admin.token")),
    h("p", {}, "Everybody else asks an admin, who makes one with:"),
    h("pre", {}, h("code", {}, "gpuctl token create NAME --role user")),
    h("p", { class: "hint" }, "A token of role viewer may look, one of role user may submit and change its own jobs."),
  );
}

function inSentences({ message, next_step }: Pick<Problem, "message" | "next_step">): string {
  return `${sentence(message)} ${sentence(next_step)}`;
}

/** With a capital and a full stop, unless it ends with what is to be typed. */
export function sentence(text: string): string {
  if (text === "") return "";
  const begun = text.startsWith("gpuctl") ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?:…)]$|: [^.]*$/.test(begun) ? begun : `${begun}.`;
}
