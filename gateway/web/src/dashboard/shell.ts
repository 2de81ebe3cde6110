// What is around every view: the name, the ways, who one is, whether what one sees is fresh; and the login in front of it.

import { h, show, write } from "../dom.ts";
import { CallError, link, logout, session, whoAmI, type Me, type Problem } from "./api.ts";
import { Login, sentence } from "./login.ts";
import { become, maySubmit } from "./person.ts";
import { addressOf, routeOf, type ViewName } from "./router.ts";
import { toastPlace } from "./toast.ts";
import { SHOW } from "./views.ts";

const TITLES: Readonly<Record<ViewName, string>> = {
  devices: "GPUs",
  queue: "Queue",
  finished: "Finished",
  usage: "Usage",
  sessions: "Sessions",
  submit: "Submit",
  job: "Job",
  open: "Opening a program",
};
const WAYS: readonly ViewName[] = ["devices", "queue", "finished", "usage", "sessions", "submit"];

/** A lost stream that is back this soon is not worth a word. */
const QUIET_MS = 1_500;
const RETRY_MS = 2_000;

const SESSION_ENDED: Readonly<Record<string, string>> = {
  TOKEN_REVOKED: "Your token was revoked or has expired. Log in again.",
  TOKEN_INVALID: "The scheduler does not know your token any more. Log in again.",
  TOKEN_MISSING: "You are logged out. Log in to go on where you were.",
};

const LEFT_ALONE: Problem = {
  reason: "",
  message: "You are logged out here. The scheduler was not heard: there your login ends by its time.",
  next_step: "",
  field: "",
};

export class Shell {
  private readonly login = new Login((me) => this.enter(me));
  private readonly place = h("main", { id: "view" });
  private readonly frame: HTMLElement;
  private readonly who = h("span", { class: "who" });
  private readonly stale = h("p", { class: "stale", role: "status" });
  private readonly links = new Map<ViewName, HTMLAnchorElement>();
  private readonly header: HTMLElement;
  private until = new AbortController();
  private shown = "";
  private user = "";
  private lostSince = 0;
  private quiet: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    for (const view of WAYS) this.links.set(view, h("a", { href: addressOf(view) }, TITLES[view]));
    const ways = h("nav", { "aria-label": "Dashboard" }, h("ul", {}, ...[...this.links.values()].map((each) => h("li", {}, each))));
    const out = h("button", { class: "text", onclick: () => void this.leave() }, "Log out");
    const name = h("a", { class: "name", href: addressOf("devices") }, h("i"), "gpufleet");
    this.header = h("header", { class: "top" }, name, ways, h("div", { class: "person" }, h("a", { class: "lobby", href: "./" }, "Lobby"), this.who, out));
    this.frame = h("div", { class: "frame" }, this.header, this.stale, this.place);
    show(this.stale, false);
    show(this.frame, false);
    show(this.login.root, false);
  }

  start(): void {
    const skip = h("a", { class: "skip", href: "#view", onclick: (event) => this.skip(event) }, "Skip to the content");
    document.body.append(skip, this.frame, this.login.root, toastPlace());
    addEventListener("hashchange", () => this.turn());
    session.onEnd((problem) => this.ask(problem));
    link.onChange(() => this.judge());
    void this.begin();
  }

  /** Whoever has a cookie is in at once. */
  private async begin(): Promise<void> {
    for (;;) {
      try {
        this.enter(await whoAmI());
        return;
      } catch (error) {
        if (error instanceof CallError && !error.mayPass) {
          this.ask(error.problem.reason === "TOKEN_MISSING" ? null : error.problem);
          return;
        }
        show(this.frame, true);
        show(this.header, false);
        this.mark(error instanceof CallError ? error.problem : null);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  private enter(me: Me): void {
    become(me);
    // Somebody else sees everything anew; who comes back finds what they were doing.
    if (me.user !== this.user) this.shown = "";
    this.user = me.user;
    write(this.who, `${me.user} · ${me.role}`);
    show(this.links.get("submit")?.parentElement ?? this.who, maySubmit());
    show(this.login.root, false);
    show(this.stale, false);
    show(this.header, true);
    show(this.frame, true);
    session.begin();
    this.turn();
  }

  private ask(problem: Problem | null): void {
    show(this.frame, false);
    show(this.login.root, true);
    document.title = "Log in · gpufleet";
    this.login.open(problem === null ? "" : (SESSION_ENDED[problem.reason] ?? sentence(problem.message)));
  }

  private async leave(): Promise<void> {
    let isEnded: boolean;
    try {
      isEnded = (await logout()).is_ended;
    } catch {
      // Without an answer the cookie is still there: who wants to be sure tries again.
      return;
    }
    this.user = "";
    this.until.abort();
    this.place.replaceChildren();
    this.shown = "";
    session.ended({ reason: "", message: "", next_step: "", field: "" });
    this.ask(isEnded ? null : LEFT_ALONE);
  }

  /** Show the view that the address names. */
  private turn(): void {
    if (this.frame.hidden || this.user === "") return;
    const { view, parameter } = routeOf(location.hash);
    const wanted = addressOf(view, parameter);
    document.title = `${view === "job" ? `Job ${parameter}` : TITLES[view]} · gpufleet`;
    if (wanted === this.shown) return;
    const isFirst = this.shown === "";
    this.shown = wanted;
    this.until.abort();
    this.until = new AbortController();
    for (const [name, way] of this.links) {
      if (name === view) way.setAttribute("aria-current", "page");
      else way.removeAttribute("aria-current");
    }
    this.place.replaceChildren();
    this.place.dataset["view"] = view;
    SHOW[view](this.place, parameter, this.until.signal);
    scrollTo(0, 0);
    if (!isFirst) this.place.querySelector("h1")?.focus();
  }

  private skip(event: Event): void {
    // The address names the view, and no part of the page.
    event.preventDefault();
    const heading = (this.frame.hidden ? this.login.root : this.place).querySelector("h1");
    heading?.focus();
  }

  /** Something was lost, or is back. */
  private judge(): void {
    const trouble = link.trouble;
    if (trouble === undefined) {
      clearTimeout(this.quiet);
      this.quiet = undefined;
      this.lostSince = 0;
      show(this.stale, false);
      this.frame.classList.remove("is-stale");
    } else if (this.lostSince === 0) {
      this.lostSince = link.heardAt;
      this.quiet = setTimeout(() => this.mark(link.trouble ?? null), QUIET_MS);
    } else if (!this.stale.hidden) {
      this.mark(trouble);
    }
  }

  private mark(problem: Problem | null): void {
    const why = problem?.reason === "GATEWAY_UNREACHABLE" ? "The gateway" : "The scheduler";
    const since = this.lostSince === 0 ? "" : ` What you see is from ${new Date(this.lostSince).toLocaleTimeString("en-GB")}.`;
    write(this.stale, `${why} is not heard just now.${since} Trying again.`);
    show(this.stale, true);
    this.frame.classList.add("is-stale");
  }
}
