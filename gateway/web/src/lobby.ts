// The models and their lines, before one joins.

import { h, show, write } from "./dom.ts";
import { lineWords, type Line } from "./words.ts";

const REFRESH_MS = 3_000;
const ANSWER_MS_MAX = 8_000;

interface Row {
  readonly root: HTMLElement;
  readonly state: HTMLElement;
  readonly more: HTMLElement;
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
  private askedAt = -REFRESH_MS;
  private isAsking = false;
  private hasAnswer = false;

  constructor(join: (model: string) => void) {
    this.join = join;
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

  /** Ask anew at once. */
  refresh(): void {
    this.askedAt = -REFRESH_MS;
    this.tick();
  }

  private async ask(): Promise<void> {
    this.isAsking = true;
    this.askedAt = performance.now();
    try {
      const answer = await fetch("api/v1/models", { signal: AbortSignal.timeout(ANSWER_MS_MAX) });
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
    const shown = lines.map((line) => this.row(line).root);
    // Elements that stay in their places keep the focus.
    if (shown.length !== this.list.children.length || shown.some((each, at) => this.list.children[at] !== each)) {
      this.list.replaceChildren(...shown);
    }
    show(this.empty, lines.length === 0);
    show(this.list, lines.length > 0);
  }

  private row(line: Line): Row {
    const row = this.rows.get(line.name) ?? this.newRow(line.name);
    const words = lineWords(line);
    row.root.dataset["tone"] = words.tone;
    write(row.state, words.text);
    write(row.more, words.more);
    write(row.button, words.action);
    row.button.setAttribute("aria-label", `${words.action}: ${line.name}`);
    // A line for what has failed can be stood in, but that is not what the page advises.
    row.button.className = words.tone === "failed" ? "quiet" : "primary";
    row.button.disabled = false;
    return row;
  }

  private newRow(name: string): Row {
    const state = h("span", { class: "state" });
    const more = h("span", { class: "more" });
    const button = h("button", { class: "primary", onclick: () => this.join(name) });
    const words = h("div", { class: "words" }, h("h2", {}, name), h("p", {}, state, more));
    const row = { root: h("li", { class: "model" }, words, button), state, more, button };
    this.rows.set(name, row);
    return row;
  }
}
