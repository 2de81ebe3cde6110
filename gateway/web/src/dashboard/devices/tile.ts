// One GPU as a tile of the grid: its load as colour and as a line over the last minutes, and in a word who has it.

import { h, write } from "../../dom.ts";
import type { NodeDevice } from "../../generated/messages.ts";
import { ABSENT, shortModel, size } from "../words.ts";
import { isOld } from "./fleet.ts";
import type { Loads } from "./loads.ts";
import { holding } from "./row.ts";

const SVG = "http://www.w3.org/2000/svg";

export class Tile {
  readonly root: HTMLButtonElement;
  private readonly index = h("b");
  private readonly load = h("span", { class: "tile-load" });
  private readonly holder = h("span", { class: "tile-holder" });
  private readonly line = document.createElementNS(SVG, "path");
  private uuid = "";
  private drawn = "";

  /** `toggle` shows the GPU's row, or takes it away. */
  constructor(toggle: (uuid: string) => void) {
    const spark = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ class: "spark", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" })) spark.setAttribute(name, value);
    spark.append(this.line);
    this.root = h("button", { class: "tile", type: "button", "aria-expanded": "false", onclick: () => toggle(this.uuid) },
      h("span", { class: "tile-head" }, h("span", { class: "unseen" }, "GPU "), this.index, h("span", { class: "unseen" }, " load "), this.load), spark, this.holder);
  }

  update(told: NodeDevice): void {
    const { device, sample } = told;
    this.uuid = device.uuid;
    const isRead = sample?.utilization_percent !== undefined && !isOld(told);
    const load = isRead ? (sample.utilization_percent ?? 0) : 0;
    write(this.index, String(device.index));
    write(this.load, isRead ? `${load}\u00a0%` : ABSENT);
    const { words, jobs } = holding(told);
    const who = [...jobs.map((job) => `#${job}`), words].filter(Boolean).join(" ");
    write(this.holder, jobs.length > 0 && words !== "" ? words : who);
    const tone = !device.is_healthy ? "bad" : told.is_free ? "free" : jobs.length > 0 ? "used" : "other";
    if (this.root.dataset["tone"] !== tone) this.root.dataset["tone"] = tone;
    if (this.root.style.getPropertyValue("--load") !== String(load / 100)) this.root.style.setProperty("--load", String(load / 100));
    this.root.classList.toggle("old", isOld(told));
    const used = sample?.memory_used_bytes === undefined ? "" : `${size(Number(sample.memory_used_bytes))} of ${size(Number(device.memory_bytes))}`;
    const label = [`GPU ${device.index}: ${isRead ? `load ${load} %` : "not read"}`, used, who, shortModel(device.name)].filter(Boolean).join(", ");
    if (this.root.title !== label) this.root.title = label;
  }

  /** The line of its load up to now. */
  draw(loads: Loads, now: number): void {
    const path = loads.path(this.uuid, now);
    if (path === this.drawn) return;
    this.drawn = path;
    this.line.setAttribute("d", path);
  }
}
