// Small parts that the views of a job share: facts, links, tables and what is said where something went wrong.

import { h, show, write } from "../../dom.ts";
import type { Int64 } from "../../generated/messages.ts";
import { CallError } from "../api.ts";
import { addressOf } from "../router.ts";
import { sentence } from "../words.ts";

/** A value of more characters than these has the room of two. */
const NARROW_CHARS_MAX = 32;

export type Content = string | Node | undefined;

/** A list of facts. A fact without content is not shown; one that has not changed is left alone. */
export class Facts {
  readonly element = h("dl", { class: "facts" });
  private readonly rows = new Map<string, { row: HTMLElement; value: HTMLElement }>();

  /** `first`: names that are to stand in front, whenever they are told. */
  constructor(...first: readonly string[]) {
    for (const name of first) this.set(name, undefined);
  }

  set(name: string, content: Content): void {
    let known = this.rows.get(name);
    if (known === undefined) {
      const value = h("dd", {});
      known = { row: h("div", {}, h("dt", {}, name), value), value };
      this.rows.set(name, known);
      this.element.append(known.row);
    }
    show(known.row, content !== undefined && content !== "");
    known.row.classList.toggle("long", typeof content === "string" && content.length > NARROW_CHARS_MAX);
    if (content instanceof Node) {
      if (known.value.textContent !== content.textContent || known.value.childElementCount === 0) known.value.replaceChildren(content);
    } else write(known.value, content ?? "");
  }
}

export function jobLink(id: Int64, text = String(id)): HTMLAnchorElement {
  return h("a", { href: addressOf("job", String(id)) }, text);
}

export function nodeLink(node: string): HTMLAnchorElement {
  return h("a", { href: addressOf("usage", node) }, node);
}

/** A section with its heading. */
export function section(name: string, title: string, ...children: (Node | string)[]): HTMLElement {
  const id = `section-${name}`;
  return h("section", { class: `part part-${name}`, "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

export type Cell = string | Node;

/** A table whose rows may change; wide ones scroll by themselves, also with the keyboard. */
export class Table {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private told = "";

  constructor(caption: string, heads: readonly string[], private readonly numbersFrom = 1) {
    const row = heads.map((head, index) => h("th", { scope: "col", class: index >= numbersFrom ? "number" : "" }, head));
    const table = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, ...row)), this.body);
    this.element = h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": caption }, table);
  }

  fill(rows: readonly (readonly Cell[])[]): void {
    const told = JSON.stringify(rows.map((row) => row.map((cell) => (typeof cell === "string" ? cell : cell.textContent))));
    if (told === this.told) return;
    this.told = told;
    this.body.replaceChildren(...rows.map((row) => h("tr", {}, ...row.map((cell, index) =>
      index === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: index >= this.numbersFrom ? "number" : "" }, cell)))));
  }
}

/** What went wrong, and what to do, in a sentence or two. */
export function problemWords(problem: unknown): string {
  if (!(problem instanceof CallError)) throw problem;
  const { message, next_step: next } = problem.problem;
  return [message, next].filter((each) => each !== "").map(sentence).join(" ");
}

/** A choice by a list; the one that is chosen stays when the list grows. */
export function choice(label: string, changed: (value: string) => void): { element: HTMLElement; select: HTMLSelectElement; offer: (options: readonly (readonly [string, string])[]) => void } {
  const select = h("select", { onchange: () => changed(select.value) });
  const element = h("label", { class: "choice" }, h("span", {}, label), select);
  const offer = (options: readonly (readonly [string, string])[]): void => {
    const told = JSON.stringify(options);
    if (select.dataset["told"] === told) return;
    select.dataset["told"] = told;
    const chosen = select.value;
    select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
    if (options.some(([value]) => value === chosen)) select.value = chosen;
    show(element, options.length > 1);
  };
  return { element, select, offer };
}
