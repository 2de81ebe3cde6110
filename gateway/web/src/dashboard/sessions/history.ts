// Visits over days: how many people came, had a turn or gave up, how long they waited, and how their sessions ended.

import { h, show, write } from "../../dom.ts";
import type { ListSessionUsageResponse, SessionUsage } from "../../generated/messages.ts";
import { call } from "../api.ts";
import { Chart } from "../chart.ts";
import { choice, problemWords, section, Table } from "../job/parts.ts";
import { clockWords, lasted } from "../job/words.ts";
import { paced, pause } from "../job/pace.ts";
import { now } from "../time.ts";
import { SPANS, startOf, type Span } from "../usage/spans.ts";
import { seconds, time, whole } from "../values.ts";
import { barsOf, COUNTS, endsWords, type Count } from "./words.ts";

/** A bar is an hour at least: of less nothing is told. */
const SHOWN: readonly Span[] = SPANS.filter(({ key }) => key !== "hour").map((span) => (span.bar < 3_600 ? { ...span, bar: 3_600, barName: "hour" } : span));
const FIRST = "week";
/** It is read no more often than this, however many people come and go. */
const AGAIN_MS = 5_000;
const HEADS = ["People", "Visits", "Turns", "Gave up", "Wait, half of them", "Wait, 19 of 20", "Ended because"];

export class History {
  readonly element: HTMLElement;
  private readonly bars: Chart;
  private readonly table = new Table("Visits by model", ["Model", ...HEADS]);
  private readonly note = h("p", { class: "hint", role: "status" });
  private readonly spans = choice("Span", () => this.restart());
  private readonly counts = choice("Show", () => this.draw());
  private cut = new AbortController();
  private told: ListSessionUsageResponse | undefined;
  /** Somebody came or left: what is counted is another number now. */
  readonly refresh: () => void;

  constructor(private readonly until: AbortSignal) {
    this.bars = new Chart({ key: "visits", title: "People and turns", unit: "", axis: "zero", shape: "bars", nothing: "Nobody came in this span." }, until);
    this.spans.offer(SHOWN.map(({ key, name }) => [key, name]));
    this.counts.offer(COUNTS);
    this.spans.select.value = FIRST;
    this.element = section("visits", "Over time", h("div", { class: "controls" }, this.spans.element, this.counts.element), this.note, this.bars.element, this.table.element);
    show(this.table.element, false);
    this.refresh = paced(() => this.read(this.cut.signal), AGAIN_MS, until);
    until.addEventListener("abort", () => this.cut.abort());
    queueMicrotask(() => this.restart());
  }

  private get span(): Span {
    return SHOWN.find(({ key }) => key === this.spans.select.value) ?? (SHOWN[0] as Span);
  }

  private restart(): void {
    this.cut.abort();
    this.cut = new AbortController();
    void this.follow(this.cut.signal);
  }

  private async follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && !this.until.aborted) {
      if (!document.hidden) await this.read(signal);
      await pause(this.span.again * 1_000, signal);
    }
  }

  private async read(signal: AbortSignal): Promise<void> {
    const { span } = this;
    const at = now() / 1_000;
    const start = startOf(span, at, new Date(at * 1_000).getTimezoneOffset() * 60);
    try {
      const told = await call("ListSessionUsage", { start_time: new Date(start * 1_000).toISOString(), step: `${span.bar}s` });
      if (signal.aborted) return;
      this.told = told;
      const since = time(told.known_since_time);
      write(this.note, since !== undefined && since > start ? `Visits are known since ${clockWords(since, at)}.` : "");
      this.draw();
    } catch (problem) {
      if (!signal.aborted) write(this.note, problemWords(problem));
    }
  }

  private draw(): void {
    const { told } = this;
    if (told === undefined) return;
    this.bars.show(barsOf(told, this.counts.select.value as Count, now() / 1_000), 0, `per ${this.span.barName}`);
    show(this.table.element, told.rows.length > 0);
    this.table.fill(told.rows.map((row) => [row.model, ...figures(row)]));
  }
}

function figures(row: SessionUsage): string[] {
  const wait = (told: string | undefined): string => (told === undefined ? "–" : lasted(seconds(told) ?? 0));
  return [
    ...[row.people, row.visits, row.turns, row.give_ups].map((each) => whole(each).toLocaleString("en")),
    wait(row.wait_p50), wait(row.wait_p95), endsWords(row) || "–",
  ];
}
