// The spans that usage is looked at over, and what is asked for of each. Pure.

import type { ListUsageResponse, UsageRow } from "../../generated/messages.ts";
import { largest, NONE, type Courses } from "../chart/course.ts";
import { seconds, time, whole } from "../values.ts";
import { word } from "../words.ts";

const MINUTE = 60, HOUR = 3_600, DAY = 86_400;

export interface Span {
  readonly key: string;
  readonly name: string;
  /** How long it is, in seconds. */
  readonly length: number;
  /** How long a bar is, in seconds; bars begin where people begin to count. */
  readonly bar: number;
  readonly barName: string;
  /** Steps that are asked for: they divide a bar, and are whole buckets of the scheduler's (5 min). */
  readonly step: number;
  /** How often it is asked again, in seconds. */
  readonly again: number;
}

export const SPANS: readonly Span[] = [
  { key: "hour", name: "1 hour", length: HOUR, bar: 5 * MINUTE, barName: "5 min", step: 5 * MINUTE, again: 15 },
  { key: "day", name: "1 day", length: DAY, bar: 30 * MINUTE, barName: "30 min", step: 10 * MINUTE, again: 30 },
  { key: "week", name: "1 week", length: 7 * DAY, bar: 3 * HOUR, barName: "3 h", step: HOUR, again: 60 },
  { key: "month", name: "30 days", length: 30 * DAY, bar: DAY, barName: "day", step: 2 * HOUR, again: 300 },
  { key: "quarter", name: "90 days", length: 90 * DAY, bar: DAY, barName: "day", step: 4 * HOUR, again: 300 },
];

export const GROUPS = [
  ["USAGE_GROUP_USER", "user", "User"], ["USAGE_GROUP_NODE", "node", "Node"],
  ["USAGE_GROUP_MODEL", "GPU model", "GPU model"], ["USAGE_GROUP_BAND", "band", "Band"],
  ["USAGE_GROUP_GROUP", "group of users", "Group"],
] as const;
export type Group = (typeof GROUPS)[number][0];

/** Bars of so many names stand on each other; all others are one. */
export const NAMES_MAX = 12;
export const OTHERS = "others";

/** Start of the first bar: bars begin at whole hours or days of the person's clock, `offset` seconds before UTC's. */
export function startOf(span: Span, now: number, offset: number): number {
  const last = Math.floor((now - offset) / span.bar) * span.bar + offset;
  return last - span.length + span.bar;
}

/** Steps to ask for from that start on. */
export function stepsOf(span: Span, start: number, now: number): number {
  return Math.max(1, Math.ceil((now - start) / span.step));
}

/** GPU-hours bar by bar of the largest names, and of all others together. */
export function barsOf(usage: ListUsageResponse, span: Span, group: Group): Courses {
  const start = time(usage.start_time), step = seconds(usage.step);
  if (start === undefined || step === undefined || step <= 0) return NONE;
  const count = Math.max(0, ...usage.rows.map(({ gpu_seconds_course: course }) => course.length));
  const bars = Math.ceil((count * step) / span.bar);
  const times = Array.from({ length: bars }, (_, bar) => start + (bar + 0.5) * span.bar);
  const lines = usage.rows.map((row) => {
    const mean = new Array<number>(bars).fill(0);
    row.gpu_seconds_course.forEach((value, index) => {
      // A step that lies across two bars counts where its middle is.
      const bar = Math.min(bars - 1, Math.floor(((index + 0.5) * step) / span.bar));
      mean[bar] = (mean[bar] ?? 0) + value / HOUR;
    });
    return { name: nameOf(row, group), course: { mean } };
  });
  return largest({ times, lines: lines.filter(({ course }) => course.mean.some((value) => value > 0)) }, NAMES_MAX, OTHERS);
}

export function nameOf(row: UsageRow, group: Group): string {
  return group === "USAGE_GROUP_BAND" ? word(row.name) : row.name;
}

/** Failed jobs in percent; nothing where none ended. */
export function failedShare(row: UsageRow): number | undefined {
  const jobs = whole(row.job_count);
  return jobs === 0 ? undefined : (100 * whole(row.failed_job_count)) / jobs;
}
