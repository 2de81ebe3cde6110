// All GPUs of all nodes, live. Read devices/fleet.ts first: what was told; node.ts and row.ts show it.

import { h, show as setShown, write } from "../dom.ts";
import { stream } from "./api.ts";
import { changeNode } from "./devices/draining.ts";
import { Fleet, SHOWN, nodeOrder, type Shown } from "./devices/fleet.ts";
import { NodeBox } from "./devices/node.ts";
import { user } from "./person.ts";
import { onEnd } from "./telling.ts";
import { heard } from "./time.ts";
import type { DevicesResponse, Node, WatchResponse } from "./types.ts";
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
  private isFiltered = false;
  private hasNodes = false;
  private hasDevices = false;

  constructor(place: HTMLElement) {
    this.choice = h("select", { id: "device-shown" }, ...SHOWN.map((each) => h("option", { value: each }, SHOWN_WORDS[each])));
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
    );
    place.append(h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, "GPUs"), this.totals), filters, this.list, this.nothing, this.empty);
  }

  follow(until: AbortSignal): void {
    const onState = onEnd(this.totals);
    stream<DevicesResponse>("WatchDevices", {}, { onMessage: (message) => this.takeDevices(message), onState }, until);
    const request = { job_ids: NO_JOB, include_nodes: true };
    stream<WatchResponse>("Watch", request, { onMessage: (message) => this.takeNode(message) }, until);
  }

  private takeDevices(message: DevicesResponse): void {
    heard(message.view_time);
    const changed = this.fleet.take(message);
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
    this.hasDevices ||= message.has_more !== true;
    this.tell();
    if (this.isFiltered || changed.nodes.size > 0) this.filter();
  }

  private seen = new Set<string>();

  private takeNode(message: WatchResponse): void {
    heard(message.view_time);
    const { node, event } = message;
    if (event === "WATCH_EVENT_SNAPSHOT" && node != null) this.seen.add(node.name);
    if (event === "WATCH_EVENT_SYNCED") {
      // What a new picture does not hold is gone.
      for (const name of this.nodes.keys()) if (!this.seen.has(name)) this.forget(name);
      this.seen.clear();
      this.hasNodes = true;
      this.tell();
    }
    if (node == null) return;
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
      box = new NodeBox(name, changeNode);
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
    let some = false;
    for (const box of this.boxes.values()) some = box.filter(this.text.value, shown, user()) || some;
    setShown(this.nothing, this.isFiltered && !some);
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
