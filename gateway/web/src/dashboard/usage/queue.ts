// How long the queue was and how long jobs waited, band by band.

import { h, write } from "../../dom.ts";
import { call } from "../api.ts";
import { Chart, Crosshair } from "../chart.ts";
import { topOf } from "../chart/course.ts";
import { problemWords, section } from "../job/parts.ts";
import { coursesOf, type SeriesName } from "./history.ts";

const POINTS = 240;
export class QueueCharts {
  readonly element: HTMLElement;
  private readonly charts: Readonly<Record<SeriesName, Chart>>;
  private readonly note = h("p", { class: "hint" });

  constructor(until: AbortSignal) {
    const crosshair = new Crosshair();
    const plan = { axis: "zero", shape: "lines", nothing: "Nothing is known of this span.", crosshair } as const;
    this.charts = {
      queued: new Chart({ ...plan, key: "queued", title: "Jobs that waited", unit: "jobs" }, until),
      running: new Chart({ ...plan, key: "running", title: "Jobs that ran", unit: "jobs" }, until),
      wait_seconds: new Chart({ ...plan, key: "waits", title: "Waits of jobs that started", unit: "s", nothing: "No job started in this span." }, until),
    };
    this.element = section("queue-history", "Queue", this.note, h("div", { class: "charts" }, ...Object.values(this.charts).map(({ element }) => element)));
  }

  async read(start: number, until: AbortSignal): Promise<void> {
    try {
      const told = await call("GetQueueHistory", { start_time: new Date(start * 1_000).toISOString(), points_max: POINTS });
      if (until.aborted) return;
      write(this.note, "");
      for (const which of Object.keys(this.charts) as SeriesName[]) {
        const courses = coursesOf(told, which);
        this.charts[which].show(courses, Math.max(1, topOf(courses)));
      }
    } catch (problem) {
      if (!until.aborted) write(this.note, problemWords(problem));
    }
  }
}
