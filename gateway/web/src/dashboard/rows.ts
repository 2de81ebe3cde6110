// Rows of a table that follow a list: each has its element as long as it is in the list, only what changed is touched, and
// whoever had the focus keeps it. On a narrow screen a row is a card (dashboard.css).

import { h, show, write } from "../dom.ts";

export interface Column<T> {
  /** Its cells have the class `cell-KEY`. */
  readonly key: string;
  /** What stands above it, and before the value on a card. */
  readonly title: string;
  /** Bring a cell up to date; called with every change of the row, and every second where times are shown. */
  fill(cell: HTMLElement, item: T): void;
}

interface Row<T> {
  readonly root: HTMLElement;
  readonly cells: readonly HTMLElement[];
  item: T;
}

export class Rows<T> {
  readonly root: HTMLElement;
  private readonly body = h("div", { role: "rowgroup" });
  private readonly empty: HTMLElement;
  private readonly rows = new Map<string, Row<T>>();
  private readonly columns: readonly Column<T>[];
  private readonly keyOf: (item: T) => string;

  constructor(name: string, kind: string, columns: readonly Column<T>[], keyOf: (item: T) => string, nothing: string) {
    this.columns = columns;
    this.keyOf = keyOf;
    const titles = columns.map((each) => h("div", { role: "columnheader", class: `cell cell-${each.key}` }, each.title));
    const head = h("div", { role: "rowgroup" }, h("div", { role: "row", class: "row titles" }, ...titles));
    this.empty = h("p", { class: "nothing" }, nothing);
    this.root = h("div", { class: `rows ${kind}` }, h("div", { role: "table", "aria-label": name }, head, this.body), this.empty);
  }

  /** Show these, in this order. */
  update(items: readonly T[]): void {
    const focused = document.activeElement;
    const kept = new Set<string>();
    let place = this.body.firstElementChild;
    for (const item of items) {
      const key = this.keyOf(item);
      kept.add(key);
      const row = this.row(key, item);
      if (row.root === place) place = place.nextElementSibling;
      else this.body.insertBefore(row.root, place);
    }
    for (const [key, row] of this.rows) {
      if (kept.has(key)) continue;
      row.root.remove();
      this.rows.delete(key);
    }
    show(this.empty, items.length === 0);
    show(this.root.firstElementChild as HTMLElement, items.length > 0);
    if (focused instanceof HTMLElement && focused !== document.activeElement) {
      // An element that is moved loses the focus; one that is gone leaves it to its neighbours.
      if (focused.isConnected) focused.focus({ preventScroll: true });
      else if (this.heldFocus) this.focusNear();
    }
    this.heldFocus = this.body.contains(document.activeElement);
  }

  private heldFocus = false;

  private focusNear(): void {
    this.root.querySelector<HTMLElement>("button, a")?.focus({ preventScroll: true });
  }

  /** Bring every cell up to date: time has passed. */
  refresh(): void {
    for (const row of this.rows.values()) this.fill(row);
  }

  private row(key: string, item: T): Row<T> {
    let row = this.rows.get(key);
    if (row === undefined) {
      const cells = this.columns.map((each) => h("div", { role: "cell", class: `cell cell-${each.key}`, "data-title": each.title }));
      row = { root: h("div", { role: "row", class: "row", "data-key": key }, ...cells), cells, item };
      this.rows.set(key, row);
      this.fill(row);
    } else if (row.item !== item) {
      row.item = item;
      this.fill(row);
    }
    return row;
  }

  private fill(row: Row<T>): void {
    this.columns.forEach((each, at) => {
      const cell = row.cells[at];
      if (cell !== undefined) each.fill(cell, row.item);
    });
  }
}

/** A part of a cell: made once, then found again. */
export function part<Name extends keyof HTMLElementTagNameMap>(
  cell: HTMLElement,
  key: string,
  name: Name,
  properties: Readonly<Record<string, string | boolean | ((event: Event) => void)>> = {},
): HTMLElementTagNameMap[Name] {
  for (const child of cell.children) {
    if (child instanceof HTMLElement && child.dataset["part"] === key) return child as HTMLElementTagNameMap[Name];
  }
  const made = h(name, { ...properties, "data-part": key });
  cell.append(made);
  return made;
}

/** A text in a part of a cell, which is not there while it is empty. */
export function say(cell: HTMLElement, key: string, text: string, kind = ""): void {
  const element = part(cell, key, "span", kind === "" ? {} : { class: kind });
  write(element, text);
  show(element, text !== "");
}
