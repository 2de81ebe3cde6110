// Who used how much, row by row, with all of it in the last row.

import { h, show, write } from "../../dom.ts";
import type { ListUsageResponse, UsageRow } from "../../generated/messages.ts";
import { nodeLink, section, Table, type Cell } from "../job/parts.ts";
import { energy, gpuTime } from "../job/stats.ts";
import { clockWords, lasted } from "../job/words.ts";
import { time, whole } from "../values.ts";
import { failedShare, GROUPS, nameOf, type Group } from "./spans.ts";

const NBSP = "\u00a0";
/** Rows on the page; all others are in the sum. */
export const ROWS_MAX = 200;
const HEADS = ["GPU time", "Part", "Jobs", "Failed", "Started", "Waited", "Utilisation", "Energy"];

export class UsageTable {
  readonly element = section("usage-table", "In figures");
  private readonly note = h("p", { class: "hint" });
  private readonly tables = new Map(GROUPS.map(([group, name, head]) => [group, new Table(`Usage by ${name}`, [head, ...HEADS])]));

  constructor() {
    this.element.append(...[...this.tables.values()].map(({ element }) => element), this.note);
  }

  fill(usage: ListUsageResponse, group: Group, start: number): void {
    for (const [each, { element }] of this.tables) show(element, each === group && usage.rows.length > 0);
    const all = usage.total?.gpu_seconds ?? 0;
    const rows = usage.rows.slice(0, ROWS_MAX).map((row) => {
      const name = nameOf(row, group);
      return cells(group === "USAGE_GROUP_NODE" && name !== "" ? nodeLink(name) : name || "–", row, all);
    });
    const total = usage.total === undefined ? [] : [cells(h("b", {}, "all"), usage.total, all)];
    this.tables.get(group)?.fill([...rows, ...total]);
    const since = time(usage.known_since_time);
    const known = since === undefined || since <= start ? "" : `Usage is known since ${clockWords(since, Date.now() / 1_000)}.`;
    const none = usage.rows.length === 0 ? "Nothing was used in this span." : "";
    const more = usage.rows.length > ROWS_MAX ? `The largest ${ROWS_MAX} are shown; all of them: gpuctl usage.` : "";
    write(this.note, [none, more, known].filter(Boolean).join(" "));
  }
}

function cells(name: Cell, row: UsageRow, all: number): Cell[] {
  const failed = failedShare(row);
  const waited = row.wait_seconds;
  return [
    name, gpuTime(row.gpu_seconds), all > 0 ? `${Math.round((100 * row.gpu_seconds) / all)}${NBSP}%` : "–",
    whole(row.job_count).toLocaleString("en"),
    failed === undefined ? "–" : `${whole(row.failed_job_count).toLocaleString("en")} (${Math.round(failed)}${NBSP}%)`,
    whole(row.start_count).toLocaleString("en"),
    waited === undefined ? "–" : h("span", {}, lasted(waited.mean), " ", h("span", { class: "hint" }, `${lasted(waited.max)} at most`)),
    row.utilization_percent === undefined ? "–" : `${Math.round(row.utilization_percent)}${NBSP}%`, energy(row.energy_wh) ?? "–",
  ];
}
