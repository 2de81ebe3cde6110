// Four charts of devices: utilisation, memory, temperature and power, with one crosshair. A job's page and a node's show them.

import { h, show } from "../../dom.ts";
import { Chart, Crosshair, type Plan } from "../chart.ts";
import { choice } from "../job/parts.ts";
import { together } from "./course.ts";
import { each, namesOf, nothing, only, type Charts, type Counter } from "./sources.ts";

/** More lines than these are hard to tell apart: then all are shown together, and one by one on demand. */
export const LINES_MAX = 8;

const PLANS: Readonly<Record<Counter, Omit<Plan, "nothing" | "crosshair">>> = {
  utilization_percent: { key: "utilisation", title: "Utilisation", unit: "%", axis: "percent", shape: "lines" },
  memory_used_mb: { key: "memory", title: "Memory", unit: "MB", axis: "zero", shape: "lines" },
  temperature_c: { key: "temperature", title: "Temperature", unit: "°C", axis: "around", shape: "lines" },
  power_draw_w: { key: "power", title: "Power", unit: "W", axis: "zero", shape: "lines" },
};

export class DeviceCharts {
  readonly element: HTMLElement;
  private readonly charts: Readonly<Record<Counter, Chart>>;
  private readonly devices: ReturnType<typeof choice>;
  private told: Charts = nothing();
  private memoryMb = 0;

  /** `what`: what a line is, "GPU" or "Node". */
  constructor(what: string, nothingWords: string, until: AbortSignal) {
    this.devices = choice(what, () => this.draw());
    const crosshair = new Crosshair();
    const chart = (counter: Counter): Chart => new Chart({ ...PLANS[counter], nothing: nothingWords, crosshair }, until);
    this.charts = {
      utilization_percent: chart("utilization_percent"), memory_used_mb: chart("memory_used_mb"),
      temperature_c: chart("temperature_c"), power_draw_w: chart("power_draw_w"),
    };
    this.element = h("div", {}, this.devices.element, h("div", { class: "charts" }, ...Object.values(this.charts).map(({ element }) => element)));
    show(this.devices.element, false);
  }

  /** `memoryMb`: what a device has at most, where it is known: the axis of memory goes up to it. */
  show(charts: Charts, memoryMb: number): void {
    this.told = charts;
    this.memoryMb = memoryMb;
    const names = namesOf(charts);
    this.devices.offer([["", `all ${names.length}`], ...(names.length < 2 ? [] : names.map((name): [string, string] => [name, name]))]);
    this.draw();
  }

  private draw(): void {
    const names = namesOf(this.told);
    const chosen = this.devices.select.value;
    const shown = each((counter) => {
      const courses = this.told[counter];
      if (chosen !== "" && names.length > 1) return only(courses, chosen);
      return courses.lines.length > LINES_MAX ? together(courses, `each of ${courses.lines.length}`) : courses;
    });
    for (const counter of Object.keys(this.charts) as Counter[]) {
      this.charts[counter].show(shown[counter], counter === "memory_used_mb" ? this.memoryMb : 0);
    }
  }
}
