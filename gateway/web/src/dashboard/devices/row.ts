// One GPU as a row: bars for load and memory, heat, power, score, and who has it. Only what changed is touched.

import { h, show, write } from "../../dom.ts";
import type { NodeDevice } from "../../generated/messages.ts";
import { addressOf } from "../router.ts";
import { ABSENT, lasting, secondsOf, shortModel, size } from "../words.ts";
import { isOld, jobsOn } from "./fleet.ts";

export const TITLES = ["GPU", "Load", "Memory", "Heat", "Power", "Score", "Job"] as const;

class Bar {
  readonly root: HTMLElement;
  private readonly fill = h("i");
  private readonly text = h("span");
  private shown = -1;

  constructor() {
    this.root = h("div", { class: "measure" }, h("div", { class: "bar", "aria-hidden": "true" }, this.fill), this.text);
  }

  update(percent: number | null, text: string): void {
    write(this.text, text);
    const whole = percent === null ? 0 : Math.max(0, Math.min(100, Math.round(percent)));
    if (whole === this.shown) return;
    this.shown = whole;
    this.fill.style.setProperty("transform", `scaleX(${whole / 100})`);
  }
}

export class DeviceRow {
  readonly root: HTMLElement;
  isShown = true;
  private readonly index = h("b");
  private readonly model = h("span", { class: "model-name" });
  private readonly load = new Bar();
  private readonly memory = new Bar();
  private readonly heat = cell("heat", "Heat");
  private readonly power = cell("power", "Power");
  private readonly score = cell("score", "Score");
  private readonly holder = cell("holder", "Job");
  private readonly words = h("span");
  private readonly links: HTMLAnchorElement[] = [];
  private device: NodeDevice;

  constructor(device: NodeDevice) {
    this.device = device;
    this.root = h(
      "div",
      { role: "row", class: "row device" },
      h("div", { role: "rowheader", class: "cell cell-gpu" }, this.index, this.model),
      h("div", { role: "cell", class: "cell cell-load", "data-title": "Load" }, this.load.root),
      h("div", { role: "cell", class: "cell cell-memory", "data-title": "Memory" }, this.memory.root),
      this.heat,
      this.power,
      this.score,
      this.holder,
    );
    this.holder.append(this.words);
    this.update(device);
  }

  get uuid(): string {
    return this.device.device.uuid;
  }

  get told(): NodeDevice {
    return this.device;
  }

  update(now: NodeDevice): void {
    this.device = now;
    const { device, sample } = now;
    write(this.index, String(device.index));
    write(this.model, shortModel(device.name));
    if (this.model.title !== device.name) this.model.title = device.name;
    const load = sample?.utilization_percent;
    this.load.update(load ?? null, load === undefined ? ABSENT : `${load}\u00a0%`);
    const total = Number(device.memory_bytes);
    const used = sample?.memory_used_bytes === undefined ? null : Number(sample.memory_used_bytes);
    this.memory.update(used === null ? null : (used / total) * 100, used === null ? ABSENT : `${gigabytes(used)} of ${size(total)}`);
    write(this.heat, sample?.temperature_c === undefined ? ABSENT : `${sample.temperature_c}\u00a0°C`);
    write(this.power, sample?.power_mw === undefined ? ABSENT : `${Math.round(Number(sample.power_mw) / 1_000)}\u00a0W`);
    write(this.score, now.availability_score === undefined ? ABSENT : now.availability_score.toFixed(2));
    this.tellHolder(now);
    const age = secondsOf(sample?.age);
    const tone = !device.is_healthy ? "bad" : now.is_free ? "free" : "used";
    if (this.root.dataset["tone"] !== tone) this.root.dataset["tone"] = tone;
    if (this.root.classList.toggle("old", isOld(now))) this.root.title = `read ${lasting(age)} ago`;
    else if (this.root.title !== "") this.root.title = "";
  }

  private tellHolder(now: NodeDevice): void {
    const { jobs, words } = holding(now);
    while (this.links.length < jobs.length) {
      const link = h("a", {});
      this.links.push(link);
      this.holder.insertBefore(link, this.words);
    }
    this.links.forEach((link, at) => {
      const job = jobs[at];
      show(link, job !== undefined);
      if (job === undefined) return;
      write(link, `#${job}`);
      const address = addressOf("job", job);
      if (link.getAttribute("href") !== address) link.href = address;
    });
    write(this.words, words);
  }
}

/** The jobs that hold it, and what is said beside their numbers. */
export function holding(now: NodeDevice): { readonly jobs: readonly string[]; readonly words: string } {
  const jobs = jobsOn(now);
  return { jobs, words: holderWords(now, jobs.length) };
}

/** Who has it, beside the jobs' numbers; or why nobody. */
function holderWords(now: NodeDevice, jobs: number): string {
  if (!now.device.is_healthy) return `unhealthy: ${now.device.unhealthy_reason || "not told why"}`;
  if (jobs > 0 && now.job_id !== "0") return now.user;
  if (jobs > 0) return `${now.shares.reduce((sum, each) => sum + (each.share?.milli ?? 0), 0) / 10}\u00a0% shared`;
  if (now.is_free) return "free";
  if (now.is_used_by_others) return "another program uses it";
  return now.sample === undefined ? "nothing is read yet" : "not given now";
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(bytes >= 1e11 ? 0 : 1).replace(/\.0$/, "");
}

function cell(key: string, title: string): HTMLElement {
  return h("div", { role: "cell", class: `cell cell-${key}`, "data-title": title });
}
