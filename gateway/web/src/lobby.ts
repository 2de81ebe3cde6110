// The models and their lines, before one joins.

import { Admission } from "./admission.ts";
import { h, show, write } from "./dom.ts";
import { phraseOf, rememberPhrase } from "./remembered.ts";
import { draw, keepOnly, pictureName, pictureOf } from "./thumb.ts";
import { accessWords, lineWords, type Line } from "./words.ts";

const REFRESH_MS = 3_000;
const ANSWER_MS_MAX = 8_000;

interface Row {
  readonly root: HTMLElement;
  readonly picture: HTMLCanvasElement;
  readonly title: HTMLElement;
  readonly name: HTMLElement;
  readonly about: HTMLElement;
  readonly controls: HTMLElement;
  readonly state: HTMLElement;
  readonly more: HTMLElement;
  readonly access: HTMLElement;
  readonly admission: Admission;
  readonly button: HTMLButtonElement;
}

export class Lobby {
  readonly root: HTMLElement;
  readonly heading = h("h1", { tabindex: "-1" }, "Choose a model");
  private readonly list = h("ul", { class: "models" });
  private readonly empty: HTMLElement;
  private readonly trouble = h("p", { class: "trouble", role: "status" });
  private readonly rows = new Map<string, Row>();
  private readonly join: (model: string) => void;
  private readonly heard: () => void;
  private readonly lines = new Map<string, Line>();
  private askedAt = -REFRESH_MS;
  private isAsking = false;
  private hasAnswer = false;

  /** `heard` is called after each answer. */
  constructor(join: (model: string) => void, heard: () => void) {
    this.join = join;
    this.heard = heard;
    this.empty = h(
      "div",
      { class: "empty", hidden: true },
      h("h2", {}, "No model is served yet"),
      h("p", {}, "Start one on a machine with a GPU, and it appears here by itself:"),
      h("pre", {}, h("code", {}, "gpuctl serve canvas --gpus 1")),
    );
    this.list.append(h("li", { class: "model ghost" }), h("li", { class: "model ghost" }));
    this.root = h(
      "main",
      { class: "lobby" },
      this.heading,
      h("p", { class: "lead" }, "You draw, click and type; a GPU answers with pictures. While nobody waits, a turn has no end."),
      this.trouble,
      this.list,
      this.empty,
    );
    show(this.trouble, false);
  }

  /** Called several times a second while the list is on the screen. */
  tick(): void {
    if (this.isAsking || document.hidden || performance.now() - this.askedAt < REFRESH_MS) return;
    void this.ask();
  }

  /** What was heard of a model last; null before. */
  lineOf(model: string): Line | null {
    return this.lines.get(model) ?? null;
  }

  /** Somebody was not let in: say why on the model's card, where it can be mended. */
  refuse(model: string, reason: string, why: string): void {
    const row = this.rows.get(model) ?? this.newRow(model);
    if (!this.lines.has(model)) this.list.replaceChildren(...[...this.rows.values()].map((each) => each.root));
    if (reason === "PASS_PHRASE_WRONG") rememberPhrase(model, "");
    const words = why.charAt(0).toUpperCase() + why.slice(1);
    // A pass phrase that nobody has said yet is asked for, and no error.
    row.admission.ask(reason === "LOGIN_NEEDED" ? "login" : "pass-phrase", words === "" ? "" : `${words}.`);
  }

  /** Join, or ask first for what the model wants. */
  private enter(model: string): void {
    const admission = this.rows.get(model)?.admission;
    if (this.lines.get(model)?.access === "pass-phrase" && phraseOf(model) === "") admission?.ask("pass-phrase", "");
    else this.join(model);
  }

  private enterWith(model: string, phrase: string): void {
    rememberPhrase(model, phrase);
    this.rows.get(model)?.admission.close();
    this.join(model);
  }

  /** Ask anew at once. */
  refresh(): void {
    this.askedAt = -REFRESH_MS;
    this.tick();
  }

  private async ask(): Promise<void> {
    this.isAsking = true;
    this.askedAt = performance.now();
    try {
      const answer = await fetch("api/v1/lobby", { signal: AbortSignal.timeout(ANSWER_MS_MAX) });
      const said = (await answer.json()) as { models?: Line[]; message?: string };
      if (said.models === undefined) this.complain("The scheduler is not heard just now. Trying again.");
      else this.update(said.models);
    } catch {
      this.complain("The gateway cannot be reached just now. Trying again.");
    } finally {
      this.isAsking = false;
    }
  }

  private complain(words: string): void {
    write(this.trouble, words);
    show(this.trouble, true);
    for (const row of this.rows.values()) row.button.disabled = true;
    if (!this.hasAnswer) this.list.replaceChildren();
  }

  private update(lines: readonly Line[]): void {
    show(this.trouble, false);
    this.hasAnswer = true;
    const names = new Set(lines.map((line) => line.name));
    for (const name of this.rows.keys()) if (!names.has(name)) this.rows.delete(name);
    keepOnly(names);
    this.lines.clear();
    for (const line of lines) this.lines.set(line.name, line);
    const shown = lines.map((line) => this.row(line).root);
    // Elements that stay in their places keep the focus.
    if (shown.length !== this.list.children.length || shown.some((each, at) => this.list.children[at] !== each)) {
      this.list.replaceChildren(...shown);
    }
    show(this.empty, lines.length === 0);
    show(this.list, lines.length > 0);
    this.heard();
  }

  private row(line: Line): Row {
    const row = this.rows.get(line.name) ?? this.newRow(line.name);
    const words = lineWords(line);
    row.root.dataset["tone"] = words.tone;
    write(row.title, line.title || line.name);
    write(row.name, line.name);
    show(row.name, line.title !== "" && line.title.toLowerCase() !== line.name.toLowerCase());
    write(row.about, line.about);
    show(row.about, line.about !== "");
    write(row.controls, line.controls);
    show(row.controls, line.controls !== "");
    void this.picture(row, line);
    write(row.state, words.text);
    write(row.more, words.more);
    write(row.access, accessWords(line.access));
    show(row.access, row.access.textContent !== "");
    if (row.admission.isOpen && (line.access ?? "open") === "open") row.admission.close();
    write(row.button, words.action);
    row.button.setAttribute("aria-label", `${words.action}: ${line.name}`);
    // A line for what has failed can be stood in, but that is not what the page advises.
    row.button.className = words.tone === "failed" ? "quiet" : "primary";
    row.button.disabled = false;
    return row;
  }

  /** Show the picture of a model where there is another one than is shown. */
  private async picture(row: Row, line: Line): Promise<void> {
    const name = pictureName(line.name, line.picture);
    if (row.root.dataset["picture"] === name) return;
    row.root.dataset["picture"] = name;
    const found = await pictureOf(line.name, line.picture);
    show(row.picture, found !== null && (await draw(found, row.picture)));
  }

  private newRow(name: string): Row {
    const picture = h("canvas", { class: "thumb", "aria-hidden": "true", hidden: true });
    const title = h("span");
    const called = h("span", { class: "called", hidden: true });
    const about = h("p", { class: "about", hidden: true });
    const controls = h("p", { class: "about controls", hidden: true });
    const state = h("span", { class: "state" });
    const more = h("span", { class: "more" });
    const button = h("button", { class: "primary", onclick: () => this.enter(name) });
    const access = h("p", { class: "access", hidden: true });
    const admission = new Admission(name, (phrase) => this.enterWith(name, phrase));
    const words = h("div", { class: "words" }, h("h2", {}, title, " ", called), about, controls, h("p", {}, state, more), access);
    const root = h("li", { class: "model", "data-model": name }, picture, words, button, admission.root);
    const row = { root, picture, title, name: called, about, controls, state, more, access, admission, button };
    this.rows.set(name, row);
    return row;
  }
}
