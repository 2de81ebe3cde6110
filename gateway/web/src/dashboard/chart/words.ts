// Numbers, units and times as the charts tell them. Pure.

import { isRead, sumOf, type Courses } from "./course.ts";

const NBSP = "\u00a0";

/** What a counter is counted in. */
export type Unit = "%" | "MB" | "W" | "°C" | "s" | "jobs" | "GPU-hours" | "";

/** How an amount is written: divided by `divisor`, with so many decimals, in this unit. */
export interface Scale {
  readonly divisor: number;
  readonly decimals: number;
  readonly unit: string;
}

/** The scale that fits a chart that reaches up to `top`. */
export function scaleFor(unit: Unit, top: number): Scale {
  if (unit === "MB" && top >= 10_000) return { divisor: 1_000, decimals: 1, unit: "GB" };
  if (unit === "W" && top >= 10_000) return { divisor: 1_000, decimals: 1, unit: "kW" };
  if (unit === "s" && top >= 7_200) return { divisor: 3_600, decimals: 1, unit: "h" };
  if (unit === "s" && top >= 120) return { divisor: 60, decimals: 1, unit: "min" };
  if (unit === "GPU-hours") return { divisor: 1, decimals: top < 1 ? 3 : top < 100 ? 2 : 0, unit };
  if (unit === "jobs") return { divisor: 1, decimals: top < 100 ? 1 : 0, unit };
  return { divisor: 1, decimals: unit === "s" && top < 10 ? 1 : 0, unit };
}

/** "88 %", "13.4 GB"; a dash where nothing was read. */
export function amount(value: number | null | undefined, scale: Scale): string {
  return isRead(value) ? `${bare(value, scale)}${NBSP}${scale.unit}`.trim() : "–";
}

/** The same without its unit. */
export function bare(value: number, scale: Scale): string {
  return (value / scale.divisor).toLocaleString("en", { maximumFractionDigits: scale.decimals });
}

/** "80–97 %": what lies between two values; one value where both are written alike. */
export function between(min: number, max: number, scale: Scale): string {
  const [low, high] = [bare(min, scale), bare(max, scale)];
  return `${low === high ? low : `${low}–${high}`}${NBSP}${scale.unit}`;
}

/** What a chart shows, for ears: one sentence a line. */
export function spoken(title: string, courses: Courses, scale: Scale): string {
  if (courses.lines.length === 0 || courses.times.length === 0) return `${title}: nothing was read.`;
  const sentences = courses.lines.map(({ name, course }) => {
    const sum = sumOf(course);
    if (sum === undefined) return `${name}: nothing was read.`;
    const gaps = sum.gaps === 0 ? "" : `, with ${sum.gaps} ${sum.gaps === 1 ? "gap" : "gaps"}`;
    const points = `${sum.count.toLocaleString("en")} ${sum.count === 1 ? "point" : "points"}`;
    return `${name}: smallest ${amount(sum.min, scale)}, largest ${amount(sum.max, scale)}, mean ${amount(sum.mean, scale)}, ${points}${gaps}.`;
  });
  const [first, last] = [courses.times[0] ?? 0, courses.times.at(-1) ?? 0];
  return `${title} from ${moment(first, last - first)} to ${moment(last, last - first)}. ${sentences.join(" ")}`;
}

/** A nice end of an axis that begins at 0: 1, 2, 2.5, 4, 5, 8 or 10 times a power of ten. */
export function niceTop(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 2.5, 4, 5, 8, 10].find((each) => each * power >= value * 0.999999) ?? 10;
  return step * power;
}

/** What may lie between two marks of an axis: 1, 2 or 5 times a power of ten of what is written there. */
export function steps(divisor: number): number[] {
  const powers = Array.from({ length: 16 }, (_, index) => 10 ** (index - 4));
  return powers.flatMap((power) => [1, 2, 5].map((each) => each * power * divisor));
}

/** An axis around values that never come near 0, such as temperatures: whole tens, and at least 20 of them. */
export function around(min: number, max: number): [number, number] {
  const low = Math.max(0, Math.floor(min / 10) * 10), high = Math.ceil(max / 10) * 10;
  return high - low >= 20 ? [low, high] : [Math.max(0, high - 20), Math.max(20, high)];
}

const DAY = 86_400;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A time as exactly as a chart over so many seconds needs it: "10:05:10", "22 Nov 10:05", "22 Nov". */
export function moment(time: number, span: number): string {
  const date = new Date(time * 1_000);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span > 60 * DAY) return day(date);
  if (span > 0.75 * DAY) return `${day(date)} ${clock}`;
  return span > 4 * 3_600 ? clock : `${clock}:${two(date.getSeconds())}`;
}

/** What stands below an axis at these times, so many seconds apart: the day only where it begins. */
export function ticks(times: readonly number[], apart: number): string[] {
  return times.map((time, index) => {
    const date = new Date(time * 1_000);
    if (apart >= DAY) return day(date);
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
    const exact = apart < 60 ? `${clock}:${two(date.getSeconds())}` : clock;
    const before = index > 0 ? new Date((times[index - 1] ?? 0) * 1_000).getDate() : undefined;
    return before !== undefined && before !== date.getDate() ? `${exact}\n${day(date)}` : exact;
  });
}

function day(date: Date): string {
  return `${date.getDate()} ${MONTHS[date.getMonth()] ?? ""}`;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}
