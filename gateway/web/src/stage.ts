// A turn: the picture, what is known of it, and how it ends.

import { h, show, write } from "./dom.ts";
import { Frames } from "./frames.ts";
import { Pad } from "./pad.ts";
import { Pointing } from "./pointing.ts";
import type { Limit, Playing, Session } from "./state.ts";
import { Typing } from "./typing.ts";
import { roomOf, type Frame, type Input, type Room } from "./wire.ts";
import { keepPicture } from "./thumb.ts";
import { clock, type Line } from "./words.ts";

/** Figures change so often that they can be read. */
const FIGURES_MS = 500;

/** How much a newer latency counts against what was seen before. */
const NEWER = 0.2;

export interface Actions {
  input(input: Input): void;
  shown(frame: Frame): void;
  sentAt(seq: number): number | null;
  stillHere(): void;
  leave(): void;
}

export class Stage {
  readonly root: HTMLElement;
  readonly heading = h("h1", { tabindex: "-1" });
  private readonly actions: Actions;
  private readonly canvas = h("canvas", { role: "img", "aria-label": "The model's picture", width: "512", height: "384" });
  private readonly field: HTMLTextAreaElement;
  private readonly frame: HTMLElement;
  private readonly space: HTMLElement;
  private readonly frames: Frames;
  private readonly time = h("span", { class: "time" });
  private readonly banner = h("div", { class: "banner" });
  private readonly bannerWords = h("span");
  private readonly answer: HTMLButtonElement;
  private readonly figures = h("dl", { class: "figures", id: "figures", hidden: true });
  private readonly cells = { latency: h("dd"), rate: h("dd"), model: h("dd"), size: h("dd"), worker: h("dd") };
  private readonly veil = h("p", { class: "veil" });
  private readonly pad: Pad;
  private readonly help = { fine: h("span"), coarse: h("span") };
  private latency: number | null = null;
  private compute = 0;
  private hasFrame = false;
  private figuresAt = 0;
  private idleFrom: { x: number; y: number } | null = null;
  private isIdleWarned = false;
  private moveMin: number | null = null;

  constructor(actions: Actions) {
    this.actions = actions;
    this.field = h("textarea", {
      class: "keys",
      rows: "1",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-label": "Keys for the model: what you type goes to it. Tab leaves the picture.",
    });
    this.field.setAttribute("autocorrect", "off");
    this.answer = h("button", { class: "primary", onclick: () => this.actions.stillHere() }, "I am still here");
    this.banner.append(this.bannerWords, this.answer);
    const labels = { latency: "Latency", rate: "Frame rate", model: "Model", size: "Picture", worker: "Worker" };
    for (const [name, label] of Object.entries(labels)) {
      this.figures.append(h("div", {}, h("dt", {}, label), this.cells[name as keyof typeof labels]));
    }
    const details = h("button", { class: "text", "aria-expanded": "false", "aria-controls": "figures" }, "Details");
    details.addEventListener("click", () => {
      show(this.figures, this.figures.hidden === true);
      details.setAttribute("aria-expanded", String(!this.figures.hidden));
      this.figuresAt = 0;
    });
    const keyboard = h("button", { class: "quiet coarse", onclick: () => this.field.focus() }, "Keyboard");
    const leave = h("button", { class: "quiet", onclick: () => this.actions.leave() }, "Leave");
    this.frame = h("div", { class: "frame" }, this.canvas, this.field, this.veil);
    this.pad = new Pad((input) => this.onInput(input));
    this.space = h("div", { class: "room" }, this.frame);
    this.root = h(
      "main",
      { class: "stage" },
      h("div", { class: "bar" }, h("div", { class: "who" }, this.heading, this.time), h("div", { class: "buttons" }, keyboard, leave)),
      this.space,
      this.pad.root,
      h(
        "div",
        { class: "foot" },
        this.figures,
        // In place of the hints, where there is room for it: it covers no picture, and moves none.
        h(
          "div",
          { class: "line" },
          h("p", { class: "hint fine" }, this.help.fine, " ", h("kbd", {}, "Tab"), " leaves the picture."),
          h("p", { class: "hint coarse" }, this.help.coarse),
          this.banner,
        ),
        details,
      ),
    );
    this.frames = new Frames(this.canvas, (frame) => this.onShown(frame));
    new Pointing(this.canvas, (input) => this.onInput(input));
    new Typing(this.field, (input) => this.onInput(input));
    // A click on the picture gives it the keys; a finger does not, for a phone would open its keyboard.
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") this.field.focus({ preventScroll: true });
    });
  }

  /** What the model says of itself: its title, its help, its keys. `line` is null as long as nothing was heard of it. */
  describe(model: string, line: Line | null): void {
    write(this.heading, line?.title || model);
    write(this.help.fine, line?.controls || "Point, click, turn the wheel, type.");
    write(this.help.coarse, line?.controls || "Touch the picture. “Keyboard” lets you type.");
    this.pad.offer(line?.keys ?? []);
  }

  /** Keep the last picture for the list of models. */
  keep(model: string): void {
    if (this.hasFrame) keepPicture(model, this.canvas);
  }

  /** A new turn: nothing of an earlier one is seen. */
  begin(model: string): void {
    this.frames.clear();
    this.hasFrame = false;
    this.latency = null;
    this.canvas.setAttribute("aria-label", `The picture of ${model}`);
  }

  /** Where the focus goes when a turn starts: to the keys, but not where that opens a keyboard on the screen. */
  focus(): void {
    if (matchMedia("(pointer: coarse)").matches) this.heading.focus();
    else this.field.focus({ preventScroll: true });
  }

  /** The last picture; null when there was none. */
  async picture(): Promise<Blob | null> {
    return this.hasFrame ? new Promise((resolve) => this.canvas.toBlob(resolve)) : null;
  }

  /** The room for the picture; before the stage is seen, that of the window. */
  room(): Room {
    const { clientWidth, clientHeight } = this.space;
    return clientWidth > 0 ? roomOf(clientWidth, clientHeight, devicePixelRatio) : roomOf(innerWidth, innerHeight, devicePixelRatio);
  }

  get hasPicture(): boolean {
    return this.hasFrame;
  }

  take(frame: Frame): void {
    this.frames.take(frame);
  }

  wake(): void {
    this.frames.wake();
  }

  update(session: Session, phase: Playing, now: number): void {
    this.frames.tick();
    this.tellTime(phase.limit, now);
    this.tellBanner(session, phase, now);
    const words = session.link === "lost" ? "Connection lost. Trying again …" : this.hasFrame ? "" : "Waiting for the first picture …";
    write(this.veil, words);
    show(this.veil, words !== "");
    this.frame.classList.toggle("lost", session.link === "lost");
    if (phase.idle === null) this.idleFrom = null;
    this.isIdleWarned = phase.idle !== null;
    this.moveMin = phase.moveMin;
    if (!this.figures.hidden && now - this.figuresAt >= FIGURES_MS) this.tellFigures(phase, now);
  }

  private tellTime(limit: Limit | null, now: number): void {
    write(this.time, limit === null ? "No time limit" : `${clock((limit.endsAt - now) / 1_000)} left`);
    this.time.classList.toggle("limited", limit !== null);
  }

  private tellBanner(session: Session, phase: Playing, now: number): void {
    const words = bannerWords(session, phase, now);
    write(this.bannerWords, words);
    show(this.banner, words !== "");
    show(this.answer, words !== "" && phase.idle !== null);
    this.banner.classList.toggle("last", phase.limit?.reason === "TURN_GRACE");
  }

  private tellFigures(phase: Playing, now: number): void {
    this.figuresAt = now;
    write(this.cells.latency, this.latency === null ? "–" : `${Math.round(this.latency)} ms`);
    write(this.cells.rate, `${this.frames.rate()} per second`);
    write(this.cells.model, this.compute > 0 ? `${this.compute.toFixed(1)} ms` : "–");
    write(this.cells.size, `${this.canvas.width} × ${this.canvas.height}`);
    write(this.cells.worker, phase.worker || "–");
  }

  private onShown(frame: Frame): void {
    if (!this.hasFrame) show(this.veil, false);
    this.hasFrame = true;
    this.frame.style.setProperty("--ratio", String(this.canvas.width / this.canvas.height));
    this.compute = frame.computeMs;
    const sent = this.actions.sentAt(frame.newestInput);
    if (sent !== null) {
      const took = performance.now() - sent;
      this.latency = this.latency === null ? took : this.latency + NEWER * (took - this.latency);
    }
    this.actions.shown(frame);
  }

  private onInput(input: Input): void {
    this.actions.input(input);
    if (this.isIdleWarned && this.isAwake(input)) this.actions.stillHere();
  }

  /** A hand that rests on a table trembles: what is a move is the server's to say. */
  private isAwake(input: Input): boolean {
    if (input.type === "key") return input.down && !input.repeat;
    if (input.type !== "pointer" || input.button_change) return true;
    this.idleFrom ??= { x: input.x, y: input.y };
    const moved = Math.hypot(input.x - this.idleFrom.x, input.y - this.idleFrom.y);
    return this.moveMin !== null && moved >= this.moveMin;
  }
}

function bannerWords(session: Session, phase: Playing, now: number): string {
  if (session.link === "lost") return "";
  if (phase.idle !== null) return `Still there? Without input the turn ends in ${clock((phase.idle.endsAt - now) / 1_000)}.`;
  const left = phase.limit === null ? "" : clock((phase.limit.endsAt - now) / 1_000);
  if (phase.limit?.reason === "TURN_GRACE") return `Your turn ends in ${left}.`;
  if (phase.limit?.reason === "TURN_WARNING") return `Somebody waits. Your turn ends in ${left}.`;
  return session.isSchedulerAway ? "The line is not heard just now. Your turn goes on." : "";
}
