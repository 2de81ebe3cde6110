// One node: its state, what is free on it, and a row or a tile for each of its GPUs.

import { h, show, write } from "../../dom.ts";
import type { Node, NodeDevice } from "../../generated/messages.ts";
import { clockWords } from "../job/words.ts";
import { isAdmin } from "../person.ts";
import { addressOf } from "../router.ts";
import { now } from "../time.ts";
import { time } from "../values.ts";
import { accountWords, counted, sentence, size, toneOf, word } from "../words.ts";
import { passes, type Shown } from "./fleet.ts";
import type { Loads } from "./loads.ts";
import { DeviceRow, TITLES } from "./row.ts";
import { Tile } from "./tile.ts";

/** Rows tell all of each GPU; a grid holds many. */
export type Form = "rows" | "grid";

export class NodeBox {
  readonly root: HTMLElement;
  private readonly state = h("span", { class: "badge" });
  private readonly facts = h("p", { class: "facts" });
  private readonly note = h("p", { class: "note" });
  private readonly button: HTMLButtonElement;
  private readonly body = h("div", { role: "rowgroup" });
  private readonly table: HTMLElement;
  private readonly rows = new Map<string, DeviceRow>();
  private readonly tiles = new Map<string, Tile>();
  private readonly grid: HTMLElement;
  /** GPUs whose rows somebody wants to see below the grid. */
  private readonly wanted = new Set<string>();
  private form: Form = "rows";
  private node: Node | null = null;

  constructor(name: string, change: (node: string, isDraining: boolean) => void, private readonly loads: Loads) {
    this.button = h("button", { class: "quiet small", onclick: () => change(name, this.node?.is_draining !== true) });
    const id = `node-${name}`;
    const titles = TITLES.map((each) => h("div", { role: "columnheader", class: `cell cell-${each.toLowerCase()}` }, each));
    this.table = h(
      "div",
      { role: "table", "aria-labelledby": id, class: "rows devices" },
      h("div", { role: "rowgroup" }, h("div", { role: "row", class: "row titles" }, ...titles)),
      this.body,
    );
    const head = h("header", {}, h("h2", { id }, h("a", { href: addressOf("usage", name) }, name)), this.state, this.facts, this.button);
    this.grid = h("div", { class: "tiles", role: "group", "aria-label": `GPUs of ${name}` });
    this.root = h("section", { class: "node", "aria-labelledby": id }, head, this.note, this.grid, this.table);
    show(this.grid, false);
    show(this.button, false);
    show(this.state, false);
    this.tell();
  }

  /** What is known of the node itself. */
  updateNode(node: Node): void {
    this.node = node;
    this.tell();
  }

  /** Its devices, in their order; rows that stay are the same ones. */
  setDevices(devices: readonly NodeDevice[]): void {
    const kept = new Set(devices.map((each) => each.device.uuid));
    for (const [uuid, row] of this.rows) {
      if (kept.has(uuid)) continue;
      row.root.remove();
      this.rows.delete(uuid);
      this.tiles.get(uuid)?.root.remove();
      this.tiles.delete(uuid);
      this.wanted.delete(uuid);
      this.loads.forget(uuid);
    }
    let place = this.body.firstElementChild;
    for (const device of devices) {
      const row = this.updateDevice(device) ?? this.newRow(device);
      if (row.root === place) place = place.nextElementSibling;
      else this.body.insertBefore(row.root, place);
    }
    this.lay();
    this.tell();
  }

  /** As rows, or as a grid with rows on demand; `filter` follows. */
  setForm(form: Form): void {
    if (form === this.form) return;
    this.form = form;
    this.wanted.clear();
    this.lay();
  }

  /** The lines of all tiles, up to now. */
  draw(now: number): void {
    if (this.form === "grid") for (const tile of this.tiles.values()) tile.draw(this.loads, now);
  }

  /** A tile for each row, in the same order: only of a grid, since a page may have thousands. */
  private lay(): void {
    if (this.form !== "grid") return;
    let place = this.grid.firstElementChild;
    const ordered = [...this.rows.values()].sort((one, other) => one.told.device.index - other.told.device.index);
    for (const row of ordered) {
      const tile = this.tiles.get(row.uuid) ?? this.newTile(row);
      tile.update(row.told);
      if (tile.root === place) place = place.nextElementSibling;
      else this.grid.insertBefore(tile.root, place);
    }
  }

  private newTile(row: DeviceRow): Tile {
    const tile = new Tile((uuid) => this.toggle(uuid));
    this.tiles.set(row.uuid, tile);
    return tile;
  }

  private toggle(uuid: string): void {
    if (!this.wanted.delete(uuid)) this.wanted.add(uuid);
    this.reveal();
  }

  /** Show what passes the filter: tiles, and rows where they are wanted. */
  private reveal(): void {
    let some = false;
    for (const [uuid, row] of this.rows) {
      const isRow = row.isShown && (this.form === "rows" || this.wanted.has(uuid));
      show(row.root, isRow);
      some ||= isRow;
      const tile = this.tiles.get(uuid);
      if (tile === undefined) continue;
      show(tile.root, row.isShown);
      tile.root.setAttribute("aria-expanded", String(isRow));
    }
    show(this.grid, this.form === "grid" && this.rows.size > 0);
    show(this.table, some);
  }

  /** One device says something new; null where it has no row here. */
  updateDevice(device: NodeDevice): DeviceRow | null {
    const row = this.rows.get(device.device.uuid);
    row?.update(device);
    if (this.form === "grid") this.tiles.get(device.device.uuid)?.update(device);
    return row ?? null;
  }

  private newRow(device: NodeDevice): DeviceRow {
    const row = new DeviceRow(device);
    this.rows.set(device.device.uuid, row);
    return row;
  }

  /** How many GPUs pass. */
  count(text: string, shown: Shown, user: string): number {
    let count = 0;
    for (const row of this.rows.values()) count += passes(row.told, text, shown, user) ? 1 : 0;
    return count;
  }

  /** Show the GPUs that pass; answers whether there is anything to see. */
  filter(text: string, shown: Shown, user: string): boolean {
    let some = false;
    for (const row of this.rows.values()) {
      row.isShown = passes(row.told, text, shown, user);
      some ||= row.isShown;
    }
    const isNamed = shown === "all" && this.rows.size === 0 && (this.node?.name ?? "").includes(text.trim());
    this.reveal();
    show(this.root, some || isNamed);
    return some || isNamed;
  }

  /** What stands above the rows; called after its devices changed. */
  tell(): void {
    const { node } = this;
    const freeCount = [...this.rows.values()].filter((row) => row.told.is_free).length;
    const parts = this.rows.size === 0 ? [] : [`${freeCount} of ${counted(this.rows.size, "GPU")}`];
    if (node !== null) {
      const { cpus = 0, memory_bytes = "0" } = node.info ?? {};
      if (cpus > 0) parts.push(`${cpus - (node.cpus_used)} of ${counted(cpus, "CPU")}`);
      const memory = Number(memory_bytes);
      if (memory > 0) parts.push(`${size(memory - Number(node.memory_used_bytes))} of ${size(memory)} memory`);
      write(this.state, word(node.state));
      this.state.dataset["tone"] = toneOf(node.state);
      show(this.state, true);
      write(this.button, node.is_draining ? "Resume" : "Drain");
      this.button.setAttribute("aria-label", `${node.is_draining ? "Resume" : "Drain"} ${node.name}`);
      show(this.button, isAdmin());
    }
    const free = parts.length === 0 ? "" : `free: ${parts.join(" · ")}`;
    write(this.facts, [free, accountWords(node?.info?.job_accounts)].filter(Boolean).join("; "));
    const note = noteOn(node, this.rows.size);
    write(this.note, note);
    show(this.note, note !== "");
  }
}

function noteOn(node: Node | null, devices: number): string {
  if (node === null) return "";
  if (node.is_draining) {
    const { drain_reason: why } = node;
    return `Draining: what runs goes on, nothing new starts${why === "" ? "." : ` (${why}).`}`;
  }
  if (node.state === "NODE_STATE_SUSPECT") return "Not heard for some seconds: no new work until it is heard again.";
  if (node.state === "NODE_STATE_LOST") {
    const at = time(node.last_heard_time);
    const since = at === undefined ? "since the scheduler started" : `since ${clockWords(at, now() / 1_000)}`;
    const shown = at === undefined || devices === 0 ? "" : "; what its GPUs show is of then";
    return `Not heard ${since}${shown}. If it does not come back: gpuctl nodes forget ${node.name}.`;
  }
  if (devices > 0) return "";
  return [node.info?.devices_note, node.info?.devices_fix].filter(Boolean).map((each) => sentence(each ?? "")).join(" ");
}
