// All GPUs of all nodes, live: as rows, or as a grid where they are many. Read devices/fleet.ts first: what was told;
// node.ts, row.ts and tile.ts show it.

import { h, show as setShown, write } from "../dom.ts";
import type { Node, WatchDevicesResponse, WatchResponse } from "../generated/messages.ts";
import { call, CallError, stream } from "./api.ts";
import "./devices/devices.css";
import { changeNode } from "./devices/draining.ts";
import { Fleet, SHOWN, nodeOrder, type Shown } from "./devices/fleet.ts";
import { Loads, SPARK_S } from "./devices/loads.ts";
import { NodeBox, type Form } from "./devices/node.ts";
import { timesOf, valueOf } from "./chart/course.ts";
import { user } from "./person.ts";
import { onEnd } from "./toast.ts";
import { heard, now } from "./time.ts";
import { seconds, time } from "./values.ts";
import { counted } from "./words.ts";

/** Only nodes are wanted: no job has this number. */
const NO_JOB = ["0"];

const SHOWN_WORDS: Readonly<Record<Shown, string>> = {
  all: "all",
  free: "free ones",
  busy: "those in use",
  mine: "those that I use",
  unhealthy: "unhealthy ones",
};

/** As many GPUs are shown as rows, unless somebody wants it otherwise: more than fit on a screen are a grid. */
const ROWS_MAX = 12;
/** Nodes whose last minutes are asked for when a grid begins; the others' lines begin with what is heard. */
const HISTORIES_MAX = 32;
const SPARK_POINTS = 60;

/** What was chosen holds for all visits of this page. */
let chosen: Form | undefined;

export function show(place: HTMLElement, _parameter: string, until: AbortSignal): void {
  new Devices(place).follow(until);
}

class Devices {
  private readonly fleet = new Fleet();
  private readonly nodes = new Map<string, Node>();
  private readonly boxes = new Map<string, NodeBox>();
  private readonly totals = h("p", { class: "totals" }, "Asking the scheduler …");
  private readonly list = h("div", { class: "nodes" });
  private readonly empty: HTMLElement;
  private readonly nothing = h("p", { class: "nothing" }, "No GPU is as you filter.");
  private readonly text = h("input", { type: "search", id: "device-text", placeholder: "node, model, user, #job", autocomplete: "off" });
  private readonly choice: HTMLSelectElement;
  private readonly loads = new Loads();
  private readonly forms: Readonly<Record<Form, HTMLButtonElement>>;
  private readonly legend = h("p", { class: "legend hint" }, "Colour and line: the load, now and over the last two minutes. Choose a GPU to see all of it.");
  private form: Form = "rows";
  private readonly asked = new Set<string>();
  private isFiltered = false;
  private hasNodes = false;
  private hasDevices = false;

  constructor(place: HTMLElement) {
    this.choice = h("select", { id: "device-shown" }, ...SHOWN.map((each) => h("option", { value: each }, SHOWN_WORDS[each])));
    this.forms = { grid: this.formButton("grid", "Grid"), rows: this.formButton("rows", "Rows") };
    this.text.addEventListener("input", () => this.filter());
    this.choice.addEventListener("change", () => this.filter());
    this.empty = h(
      "div",
      { class: "empty-view" },
      h("h2", {}, "No node yet"),
      h("p", {}, "Start an agent on a machine with GPUs, and it appears here by itself:"),
      h("pre", {}, h("code", {}, "gpuctl agent --scheduler HOST:PORT")),
    );
    setShown(this.empty, false);
    setShown(this.nothing, false);
    const filters = h(
      "div",
      { class: "filters" },
      h("label", { for: "device-text", class: "unseen" }, "Filter by node, model, user or job"),
      this.text,
      h("span", { class: "chosen" }, h("label", { for: "device-shown" }, "Show"), this.choice),
      h("span", { class: "forms", role: "group", "aria-label": "Shown as" }, this.forms.grid, this.forms.rows),
    );
    setShown(this.legend, false);
    place.append(h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, "GPUs"), this.totals), filters, this.legend, this.list, this.nothing, this.empty);
  }

  follow(until: AbortSignal): void {
    const onState = onEnd(this.totals);
    stream("WatchDevices", {}, { onMessage: (message) => this.takeDevices(message), onState }, until);
    const request = { job_ids: NO_JOB, include_nodes: true };
    stream("Watch", request, { onMessage: (message) => this.takeNode(message) }, until);
  }

  private takeDevices(message: WatchDevicesResponse): void {
    heard(message.view_time);
    const changed = this.fleet.take(message);
    const at = time(message.view_time) ?? Date.now() / 1_000;
    for (const device of changed.devices) this.loads.take(device, at);
    const nodes = new Set<string>(changed.nodes);
    if (nodes.size > 0) {
      const devices = this.fleet.byNode();
      for (const name of nodes) {
        const list = devices.get(name);
        if (list !== undefined) this.box(name).setDevices(list);
        else if (this.nodes.has(name)) this.box(name).setDevices([]);
        else this.drop(name);
      }
      this.order();
    }
    for (const device of changed.devices) {
      if (changed.nodes.has(device.node)) continue;
      this.boxes.get(device.node)?.updateDevice(device);
      nodes.add(device.node);
    }
    for (const name of nodes) this.boxes.get(name)?.tell();
    this.hasDevices ||= !message.has_more;
    this.tell();
    if (this.isFiltered || changed.nodes.size > 0) this.filter();
    if (this.form === "grid") for (const name of nodes) this.boxes.get(name)?.draw(at);
  }

  private seen = new Set<string>();

  private takeNode(message: WatchResponse): void {
    heard(message.view_time);
    const { node, event } = message;
    if (event === "WATCH_EVENT_SNAPSHOT" && node !== undefined) this.seen.add(node.name);
    if (event === "WATCH_EVENT_SYNCED") {
      // What a new picture does not hold is gone.
      for (const name of this.nodes.keys()) if (!this.seen.has(name)) this.forget(name);
      this.seen.clear();
      this.hasNodes = true;
      this.tell();
    }
    if (node === undefined) return;
    if (event === "WATCH_EVENT_REMOVED") {
      this.forget(node.name);
    } else {
      const isNew = !this.boxes.has(node.name);
      this.nodes.set(node.name, node);
      this.box(node.name).updateNode(node);
      if (isNew) {
        this.order();
        this.filter();
      }
    }
    this.tell();
  }

  private forget(name: string): void {
    this.nodes.delete(name);
    if (!this.fleet.byNode().has(name)) this.drop(name);
  }

  private box(name: string): NodeBox {
    let box = this.boxes.get(name);
    if (box === undefined) {
      box = new NodeBox(name, changeNode, this.loads);
      box.setForm(this.form);
      this.boxes.set(name, box);
      const node = this.nodes.get(name);
      if (node !== undefined) box.updateNode(node);
    }
    return box;
  }

  private drop(name: string): void {
    this.boxes.get(name)?.root.remove();
    this.boxes.delete(name);
  }

  private order(): void {
    let place = this.list.firstElementChild;
    for (const name of [...this.boxes.keys()].sort(nodeOrder)) {
      const root = this.boxes.get(name)?.root;
      if (root === undefined) continue;
      if (root === place) place = place.nextElementSibling;
      else this.list.insertBefore(root, place);
    }
  }

  private filter(): void {
    const shown = this.choice.value as Shown;
    this.isFiltered = shown !== "all" || this.text.value.trim() !== "";
    this.judgeForm(shown);
    let some = false;
    for (const box of this.boxes.values()) some = box.filter(this.text.value, shown, user()) || some;
    setShown(this.nothing, this.isFiltered && !some);
  }

  private formButton(form: Form, words: string): HTMLButtonElement {
    return h("button", { class: "quiet small", type: "button", "aria-pressed": "false", onclick: () => {
      chosen = form;
      this.filter();
    } }, words);
  }

  /** Rows or a grid: as was chosen, or as many as there are to see. */
  private judgeForm(shown: Shown): void {
    let count = 0;
    for (const box of this.boxes.values()) count += box.count(this.text.value, shown, user());
    this.form = chosen ?? (count > ROWS_MAX ? "grid" : "rows");
    for (const box of this.boxes.values()) box.setForm(this.form);
    this.list.classList.toggle("as-grid", this.form === "grid");
    for (const [form, button] of Object.entries(this.forms)) button.setAttribute("aria-pressed", String(form === this.form));
    setShown(this.legend, this.form === "grid" && count > 0);
    if (this.form === "grid") this.askHistories();
  }

  /** The minutes before somebody looked. */
  private askHistories(): void {
    for (const name of this.boxes.keys()) {
      if (this.asked.size >= HISTORIES_MAX) return;
      if (this.asked.has(name)) continue;
      this.asked.add(name);
      void this.askHistory(name);
    }
  }

  private async askHistory(name: string): Promise<void> {
    const start = new Date(now() - SPARK_S * 1_000).toISOString();
    try {
      const told = await call("GetNodeHistory", { node: name, start_time: start, points_max: SPARK_POINTS });
      const uuids = new Map((this.fleet.byNode().get(name) ?? []).map(({ device }) => [device.index, device.uuid]));
      for (const { index, utilization_percent: course } of told.devices) {
        const uuid = index === undefined ? undefined : uuids.get(index);
        const loads = course?.mean ?? [];
        const times = timesOf(time(told.start_time) ?? 0, seconds(told.step) ?? 1, loads.length);
        const points = times.flatMap((at, place) => {
          const load = valueOf(loads[place]);
          return load === null ? [] : [{ at, load }];
        });
        if (uuid !== undefined) this.loads.prepend(uuid, points);
      }
      this.boxes.get(name)?.draw(now() / 1_000);
    } catch (problem) {
      // The line begins with what is heard, then.
      if (!(problem instanceof CallError)) throw problem;
    }
  }

  private tell(): void {
    if (!this.hasDevices) return;
    const { count, free, load, watts } = this.fleet.totals();
    const parts = [`${counted(count, "GPU")} on ${counted(this.boxes.size, "node")}`, `${free.toLocaleString("en")} free`];
    if (load !== null) parts.push(`mean load ${Math.round(load)}\u00a0%`);
    if (watts > 0) parts.push(watts >= 1_000 ? `${(watts / 1_000).toFixed(1)}\u00a0kW` : `${Math.round(watts)}\u00a0W`);
    write(this.totals, parts.join(" · "));
    setShown(this.empty, this.hasNodes && this.boxes.size === 0);
  }
}
