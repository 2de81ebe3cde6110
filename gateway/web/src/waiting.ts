// A place in the line: how far, how long, and that one may do something else meanwhile.

import { h, show, write } from "./dom.ts";
import type { Session } from "./state.ts";
import { people, span } from "./words.ts";

/** Of a long line so many places are drawn. */
const DOTS_MAX = 9;

export class WaitingRoom {
  readonly root: HTMLElement;
  readonly heading = h("h1", { tabindex: "-1" });
  private readonly why = h("p", { class: "why" });
  private readonly number = h("p", { class: "number" });
  private readonly of = h("p", { class: "of" });
  private readonly dots = h("div", { class: "dots", "aria-hidden": "true" });
  private readonly estimate = h("dd");
  private readonly bound = h("dd");
  private readonly boundRow: HTMLElement;
  private readonly cause = h("p", { class: "cause" });
  private readonly trouble = h("p", { class: "trouble" });

  constructor(leave: () => void) {
    this.boundRow = h("div", {}, h("dt", {}, "At most"), this.bound);
    this.root = h(
      "main",
      { class: "waiting" },
      this.heading,
      this.trouble,
      this.why,
      h("div", { class: "place" }, this.number, this.of, this.dots),
      h("dl", { class: "times" }, h("div", {}, h("dt", {}, "Estimated"), this.estimate), this.boundRow),
      this.cause,
      h("p", { class: "hint" }, "Your turn starts by itself. You may look at another tab meanwhile: the title of this one tells."),
      h("button", { class: "quiet", onclick: leave }, "Leave the line"),
    );
  }

  update(session: Session, now: number): void {
    const { phase } = session;
    if (phase.kind === "joining") {
      write(this.heading, `Joining ${session.model}`);
      write(this.number, "…");
      write(this.of, "asking for a place");
      this.draw(0, 0);
      this.times(null, null, now);
    } else if (phase.kind === "waiting") {
      write(this.heading, `In line for ${session.model}`);
      write(this.number, phase.place === null ? "…" : phase.place.toLocaleString("en"));
      write(this.of, placeWords(phase.place, phase.lineLength));
      this.draw(phase.place ?? 0, phase.lineLength);
      this.times(phase.estimateAt, phase.boundAt, now);
    }
    this.tell(this.why, phase.kind === "waiting" ? phase.why : "");
    this.tell(this.cause, phase.kind === "waiting" ? causeWords(phase.cause, phase.boundAt) : "");
    this.tell(this.trouble, trouble(session));
  }

  private times(estimateAt: number | null, boundAt: number | null, now: number): void {
    write(this.estimate, estimateAt === null ? "not known" : estimateWords((estimateAt - now) / 1_000));
    write(this.bound, boundAt === null ? "" : span((boundAt - now) / 1_000));
    show(this.boundRow, boundAt !== null);
  }

  private tell(element: HTMLElement, text: string): void {
    write(element, text);
    show(element, text !== "");
  }

  private draw(place: number, length: number): void {
    const dots = Math.min(length, DOTS_MAX);
    const own = Math.min(place, dots);
    if (this.dots.childElementCount !== dots) {
      this.dots.replaceChildren(...Array.from({ length: dots }, () => h("i")));
    }
    [...this.dots.children].forEach((dot, at) => dot.classList.toggle("own", at + 1 === own));
  }
}

/** What is wrong with the connection, in words; empty when nothing is. */
function trouble(session: Session): string {
  if (session.isFull) return "More people are here than this gateway takes. Trying again.";
  if (session.link === "lost" && session.phase.kind === "joining") return "The gateway cannot be reached. Trying again.";
  if (session.link === "lost") return "The connection is lost. Trying again; your place is kept for a minute.";
  return session.isSchedulerAway ? "The line is not heard just now. Your place is kept." : "";
}

/** An estimate may be passed: it is none that was promised. */
function estimateWords(seconds: number): string {
  return seconds > 0 ? `about ${span(seconds)}` : "any moment";
}

function placeWords(place: number | null, length: number): string {
  if (place === null) return "you are in front";
  if (place === 1) return length === 1 ? "you are next, and nobody else waits" : `you are next of ${people(length)}`;
  return `${people(place - 1)} before you, ${people(length)} in line`;
}

function causeWords(cause: string, boundAt: number | null): string {
  if (cause === "") return "";
  const words = `${cause.charAt(0).toUpperCase()}${cause.slice(1)}.`;
  return boundAt === null ? words : `It became longer: ${cause}.`;
}
