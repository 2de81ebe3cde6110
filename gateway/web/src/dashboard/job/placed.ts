// How an attempt was placed: its ranks, and its devices as they were when the scheduler decided.

import { h, show, write } from "../../dom.ts";
import type { Attempt } from "../../generated/messages.ts";
import { time, whole } from "../values.ts";
import { nodeLink, section, Table } from "./parts.ts";
import { clockWords, endWords, listed, size } from "./words.ts";

const METHODS: Readonly<Record<string, string>> = {
  score: "by score: the best that fitted",
  pinned: "as the job named them",
  fragmentation: "so that whole ones stay whole: the fullest that had room",
  fallback: "in plain order, without telemetry or as was asked",
};

export class Placed {
  readonly element: HTMLElement;
  private readonly method = h("p", {});
  private readonly devices = new Table("Each GPU as it was when it was chosen", ["GPU", "Model", "UUID", "Memory free", "Utilisation", "Score"], 3);
  private readonly ranks = new Table("Each rank", ["Rank", "Node", "GPUs", "CPUs", "Memory", "Started", "Ended"], 9);

  constructor() {
    this.element = section("placed", "How it was placed", this.method, this.devices.element, this.ranks.element);
    show(this.element, false);
  }

  update(attempt: Attempt | undefined, now: number): void {
    show(this.element, attempt !== undefined && attempt.ranks.length > 0);
    if (attempt === undefined) return;
    const info = attempt.gpu_info;
    const several = new Set(attempt.ranks.map(({ node }) => node)).size > 1;
    const at = time(attempt.place_time);
    const placed = at === undefined ? "" : ` Decided at ${clockWords(at, now)}.`;
    write(this.method, info === undefined || info.count === 0 ? `Without a GPU.${placed}` : `Its ${info.count === 1 ? "GPU was" : "GPUs were"} chosen ${METHODS[info.allocation_method] ?? `by ${info.allocation_method}`} (${info.allocation_method}).${placed}`);
    show(this.devices.element, (info?.devices.length ?? 0) > 0);
    this.devices.fill((info?.devices ?? []).map((device) => [
      several ? `${device.node}:${device.index}` : `GPU\u00a0${device.index}`, device.name, h("code", {}, device.uuid),
      device.memory_free_mb === undefined ? "–" : size(whole(device.memory_free_mb) * 1e6),
      device.utilization_percent === undefined ? "–" : `${device.utilization_percent}\u00a0%`,
      device.availability_score === undefined ? "–" : device.availability_score.toFixed(3),
    ]));
    this.ranks.fill(attempt.ranks.map((rank) => [
      String(rank.rank), nodeLink(rank.node), rank.device_indices.length === 0 ? "–" : listed(rank.device_indices), String(rank.cpus),
      whole(rank.memory_bytes) > 0 ? size(rank.memory_bytes) : "–", started(rank.start_time, now), endWords(rank) || "–",
    ]));
  }
}

function started(told: string | undefined, now: number): string {
  const at = time(told);
  return at === undefined ? "–" : clockWords(at, now);
}
