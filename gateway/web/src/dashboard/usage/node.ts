// The devices of one node, or of all nodes node by node, over a span; of the last hour live.

import { h, show, write } from "../../dom.ts";
import type { GetNodeHistoryResponse } from "../../generated/messages.ts";
import { call, stream } from "../api.ts";
import { DeviceCharts } from "../chart/devices.ts";
import { live, longer, memoryOf, nothing, ofHistory, Readings, type Charts, type Wanted } from "../chart/sources.ts";
import { problemWords, section } from "../job/parts.ts";

const POINTS = 240;
/** Spans up to this follow what is read just now, too. In seconds. */
const LIVE_SECONDS_MAX = 3_600;

export class NodeCharts {
  readonly element: HTMLElement;
  private readonly charts: DeviceCharts;
  private readonly note = h("p", { class: "hint" });
  private history: Charts = nothing();
  private tail: Charts = nothing();
  private answers: readonly GetNodeHistoryResponse[] = [];
  private isLive = false;
  private start = 0;

  /** `node`: its name; empty for all nodes. */
  constructor(private readonly node: string, until: AbortSignal) {
    this.charts = new DeviceCharts(node === "" ? "Node" : "GPU", "Nothing is known of this span.", until);
    this.element = section("gpus", node === "" ? "Nodes" : "GPUs", this.note, this.charts.element);
    show(this.note, false);
    if (node === "") return;
    const readings = new Readings(new Map([[node, "all"]]));
    stream("WatchDevices", { nodes: [node], interval: "1s" }, { onMessage: (told) => this.heard(readings.take(told)) }, until);
  }

  async read(start: number, seconds: number, until: AbortSignal): Promise<void> {
    const request = { start_time: new Date(start * 1_000).toISOString(), points_max: POINTS };
    try {
      const told = await call("GetNodeHistory", this.node === "" ? { ...request, by_node: true } : { ...request, node: this.node });
      if (until.aborted) return;
      this.start = start;
      this.isLive = seconds <= LIVE_SECONDS_MAX;
      this.answers = [told];
      this.history = ofHistory(this.answers, this.wanted());
      this.say("");
      this.draw();
    } catch (problem) {
      if (!until.aborted) this.say(problemWords(problem));
    }
  }

  private wanted(): Wanted {
    const nodes = this.node === "" ? this.answers.flatMap(({ devices }) => devices.map(({ node }) => node)) : [this.node];
    return new Map(nodes.map((node) => [node, "all"]));
  }

  private heard(read: Charts): void {
    this.tail = longer(this.tail, read);
    if (this.isLive) this.draw();
  }

  private draw(): void {
    const shown = this.isLive && this.start > 0 ? live(this.history, this.tail) : this.history;
    this.charts.show(shown, this.node === "" ? 0 : memoryOf(this.answers, this.wanted()));
  }

  private say(words: string): void {
    write(this.note, words);
    show(this.note, words !== "");
  }
}
