// What an attempt used, in figures: device by device, process by process, and all in all.

import { h, show, write } from "../../dom.ts";
import type { GetJobStatsResponse, Statistic } from "../../generated/messages.ts";
import { seconds, whole } from "../values.ts";
import { Facts, section, Table } from "./parts.ts";
import { deviceName, lasted, size } from "./words.ts";

const NBSP = "\u00a0";

export class StatsView {
  readonly element: HTMLElement;
  private readonly facts = new Facts();
  private readonly devices = new Table("Each GPU: mean, and from the smallest to the largest value", [
    "GPU", "Model", "Utilisation", "Memory", "Temperature", "Power", "Energy",
  ], 2);
  private readonly processes = new Table("The processes of each rank", ["Rank", "Node", "CPU time", "CPU load", "Memory", "Read", "Written"], 2);
  private readonly note = h("p", { class: "hint" });

  constructor() {
    this.element = section("stats", "What it used", this.note, this.facts.element, this.devices.element, this.processes.element);
    show(this.element, false);
  }

  /** `problem`: why there are none. */
  update(stats: GetJobStatsResponse | undefined, problem = ""): void {
    show(this.element, stats !== undefined || problem !== "");
    const nothing = stats?.is_final === false ? "Nothing was read of it yet." : "Nothing was read of it: it may have ended within a second.";
    write(this.note, problem || (whole(stats?.sample_count) === 0 ? nothing : ""));
    show(this.note, this.note.textContent !== "");
    if (stats === undefined) return;
    const several = new Set(stats.devices.map(({ node }) => node)).size > 1;
    this.facts.set("Watched for", watchedWords(stats));
    this.facts.set("Samples", whole(stats.sample_count).toLocaleString("en"));
    this.facts.set("GPU time", stats.devices.length === 0 ? undefined : gpuTime(stats.gpu_seconds));
    this.facts.set("Energy", energy(stats.energy_wh));
    this.facts.set("Idle", stats.idle_share === undefined ? undefined : `${percent(100 * stats.idle_share)} of the time`);
    show(this.devices.element, stats.devices.length > 0);
    this.devices.fill(stats.devices.map((device) => [
      deviceName(device.node, device.index, several), device.name, of(device.utilization_percent, percent),
      memory(device.memory_used_mb, device.memory_usage_percent), of(device.temperature_c, (value) => `${Math.round(value)}${NBSP}°C`),
      of(device.power_draw_w, (value) => `${Math.round(value).toLocaleString("en")}${NBSP}W`), energy(device.energy_wh) ?? "–",
    ]));
    show(this.processes.element, stats.processes.length > 0);
    this.processes.fill(stats.processes.map((each) => [
      String(each.rank), each.node, lasted(each.cpu_seconds), of(each.cpu_percent, percent),
      of(each.memory_mb, (value) => size(value * 1e6)), each.read_bytes === undefined ? "–" : size(each.read_bytes),
      each.write_bytes === undefined ? "–" : size(each.write_bytes),
    ]));
  }
}

/** "3 min 10 s so far": how long it was watched, and whether that is all of it. */
export function watchedWords({ monitoring_duration: span, is_final: isFinal, is_incomplete: isIncomplete }: GetJobStatsResponse): string {
  const until = isIncomplete ? ", as far as its node told before it was lost" : isFinal ? "" : " so far";
  return `${lasted(seconds(span) ?? 0)}${until}`;
}

function of(statistic: Statistic | undefined, words: (value: number) => string): HTMLElement | string {
  if (statistic === undefined) return "–";
  return h("span", {}, h("b", {}, words(statistic.mean)), " ", h("span", { class: "hint" }, range(words(statistic.min), words(statistic.max))));
}

/** "0–97 %": a unit that both have is said once. */
export function range(low: string, high: string): string {
  const [value = "", unit] = low.split(NBSP);
  if (low === high) return low;
  return unit === high.split(NBSP)[1] ? `${value}–${high}` : `${low}–${high}`;
}

function memory(used: Statistic | undefined, share: Statistic | undefined): HTMLElement | string {
  const told = of(used, (value) => size(value * 1e6));
  if (typeof told !== "string" && share !== undefined) told.append(h("span", { class: "hint" }, `, ${percent(share.max)} at most`));
  return told;
}

function percent(value: number): string {
  return `${Number(value < 9.95 ? value.toFixed(1) : value.toFixed(0))}${NBSP}%`;
}

/** "12.3 GPU-hours", "42 GPU-seconds". */
export function gpuTime(gpuSeconds: number): string {
  return gpuSeconds < 360 ? `${Number(gpuSeconds.toFixed(1))} GPU-seconds` : `${Number((gpuSeconds / 3_600).toFixed(gpuSeconds < 36_000 ? 2 : 1)).toLocaleString("en")} GPU-hours`;
}

/** "3.4 Wh", "1.2 kWh". */
export function energy(wattHours: number | undefined): string | undefined {
  if (wattHours === undefined) return undefined;
  const [value, unit] = wattHours >= 1_000 ? [wattHours / 1_000, "kWh"] : [wattHours, "Wh"];
  return `${Number(value.toFixed(value < 10 ? 2 : 1)).toLocaleString("en")}${NBSP}${unit}`;
}
