// The GPUs of an attempt over its time: their history, and what is read of them as it comes; afterwards what was kept.

import { h, show, write } from "../../dom.ts";
import type { Attempt, GetJobStatsResponse, GetNodeHistoryResponse, Job } from "../../generated/messages.ts";
import { call, stream } from "../api.ts";
import { DeviceCharts } from "../chart/devices.ts";
import { finest, live, longer, memoryOf, nothing, ofHistory, ofSeries, over, Readings, whollyWithin, type Charts, type Wanted } from "../chart/sources.ts";
import { seconds, time } from "../values.ts";
import { paced } from "./pace.ts";
import { problemWords, section } from "./parts.ts";
import { StatsView } from "./stats.ts";

/** How often the figures are asked for again while a job runs, and its history is read anew. */
const STATS_MS = 5_000;
const HISTORY_MS = 60_000;
/** Steps of a history: as many as a chart shows well. What lies between two of them is the band around its line. */
const POINTS = 240;
/** Nodes of one attempt that are read; a larger gang shows the charts of its first nodes. */
const NODES_MAX = 16;

export class Gpus {
  readonly element: HTMLElement;
  readonly stats = new StatsView();
  private readonly charts: DeviceCharts;
  private readonly note = h("p", { class: "hint" });
  private cut = new AbortController();
  private looked = "";
  private attempt: Attempt | undefined;
  private wanted: Wanted = new Map();
  private answers: GetNodeHistoryResponse[] = [];
  private history: Charts = nothing();
  private tail: Charts = nothing();
  private told: GetJobStatsResponse | undefined;
  private readHistory = (): void => undefined;
  private readStats = (): void => undefined;

  constructor(private readonly id: number, private readonly until: AbortSignal) {
    this.charts = new DeviceCharts("GPU", "Nothing was read yet.", until);
    this.element = section("gpus", "GPUs", this.note, this.charts.element);
    show(this.element, false);
    show(this.note, false);
    until.addEventListener("abort", () => this.cut.abort());
  }

  update(job: Job, attempt: Attempt | undefined): void {
    show(this.element, attempt?.ranks.some(({ device_indices: indices }) => indices.length > 0) ?? false);
    if (attempt === undefined) {
      this.stats.update(undefined);
      return;
    }
    this.attempt = attempt;
    const isOver = attempt.end_time !== undefined;
    const looked = `${attempt.number}/${isOver}/${job.has_stats}`;
    if (looked === this.looked) return;
    if (!this.looked.startsWith(`${attempt.number}/`)) this.forget();
    this.looked = looked;
    this.begin(attempt, isOver);
  }

  private forget(): void {
    this.answers = [];
    this.history = nothing();
    this.tail = nothing();
    this.told = undefined;
  }

  /** Another attempt is looked at, or this one has ended. */
  private begin(attempt: Attempt, isOver: boolean): void {
    this.cut.abort();
    this.cut = new AbortController();
    const { signal } = this.cut;
    this.wanted = new Map(attempt.ranks.filter(({ device_indices: indices }) => indices.length > 0).slice(0, NODES_MAX)
      .map(({ node, device_indices: indices }) => [node, new Set(indices)]));
    this.readStats = paced(() => this.askStats(attempt.number, signal), STATS_MS, signal);
    this.readHistory = paced(() => this.askHistory(attempt, signal), isOver ? 0 : STATS_MS, signal);
    this.readStats();
    this.readHistory();
    if (isOver) return;
    const timer = setInterval(() => this.readHistory(), HISTORY_MS);
    const figures = setInterval(() => document.hidden || this.readStats(), STATS_MS);
    signal.addEventListener("abort", () => [timer, figures].forEach(clearInterval));
    if (this.wanted.size === 0) return;
    const readings = new Readings(this.wanted);
    stream("WatchDevices", { nodes: [...this.wanted.keys()], interval: "1s" }, {
      onMessage: (told) => {
        this.tail = longer(this.tail, readings.take(told));
        this.draw();
      },
      // What was read meanwhile is in the history.
      onState: (state) => state === "live" && this.readHistory(),
    }, signal);
  }

  private async askStats(number: number, signal: AbortSignal): Promise<void> {
    try {
      const stats = await call("GetJobStats", { job_id: String(this.id), attempt: number });
      if (signal.aborted) return;
      this.told = stats;
      this.stats.update(stats);
      this.draw();
    } catch (problem) {
      if (!signal.aborted && this.told === undefined) this.stats.update(undefined, problemWords(problem));
    }
  }

  private async askHistory(attempt: Attempt, signal: AbortSignal): Promise<void> {
    const start = attempt.place_time ?? attempt.start_time;
    const span = {
      points_max: POINTS, ...(start === undefined ? {} : { start_time: start }), ...(attempt.end_time === undefined ? {} : { end_time: attempt.end_time }),
    };
    try {
      const nodes = [...this.wanted.keys()];
      const answers = await Promise.all(nodes.map((node) => call("GetNodeHistory", { node, ...span })));
      if (signal.aborted) return;
      this.answers = answers;
      // A step may be longer on one node than on another; the longest one tells least.
      const step = Math.max(0, ...answers.map((answer) => seconds(answer.step) ?? 0));
      this.history = whollyWithin(ofHistory(answers, this.wanted), time(start) ?? 0, time(attempt.end_time) ?? Infinity, step);
      const all = new Set(attempt.ranks.map(({ node }) => node)).size;
      this.say(all > NODES_MAX ? `These are the GPUs of the first ${NODES_MAX} of its ${all} nodes.` : "");
    } catch (problem) {
      if (!signal.aborted) this.say(problemWords(problem));
    }
    this.draw();
  }

  private say(words: string): void {
    write(this.note, words);
    show(this.note, words !== "");
  }

  private draw(): void {
    const start = time(this.attempt?.place_time ?? this.attempt?.start_time);
    if (start === undefined || this.until.aborted) return;
    const series = this.told === undefined ? nothing() : ofSeries(this.told, start);
    const isOver = this.attempt?.end_time !== undefined;
    const kept = finest(this.history, series, isOver);
    this.charts.show(isOver ? over(kept) : live(kept, this.tail), memoryOf(this.answers, this.wanted));
  }
}
