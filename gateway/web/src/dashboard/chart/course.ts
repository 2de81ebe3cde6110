// Courses of counters over time, as the charts show them: joined from several answers, with gaps where nothing was read.
// Pure: no clock, no document.

import type * as messages from "../../generated/messages.ts";

/** null where nothing was read; undefined where another line has a point and this one has none to have. */
export type Values = readonly (number | null | undefined)[];

/** One counter over the times of its Courses. Without a smallest and largest value there is only the mean. */
export interface Course {
  readonly mean: Values;
  readonly min?: Values;
  readonly max?: Values;
}

export interface Line {
  readonly name: string;
  readonly course: Course;
}

/** Lines over the same times, in seconds since 1970, rising. */
export interface Courses {
  readonly times: readonly number[];
  readonly lines: readonly Line[];
}

export const NONE: Courses = { times: [], lines: [] };

/** What was told of `count` steps; what is missing at the end was not read. */
export function courseOf(told: messages.Course | undefined, count: number): Course {
  const read = (values: readonly number[] | undefined): (number | null)[] =>
    Array.from({ length: count }, (_, index) => valueOf(values?.[index]));
  return { mean: read(told?.mean), min: read(told?.min), max: read(told?.max) };
}

/** -1, and what is no number, was not read. */
export function valueOf(told: number | undefined): number | null {
  return told === undefined || !Number.isFinite(told) || told < 0 ? null : told;
}

/** The middle of each step. */
export function timesOf(start: number, step: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => start + (index + 0.5) * step);
}

/** The middle of each span of a series that tells their ends, in milliseconds from the beginning. */
export function timesOfEnds(start: number, ends: readonly number[]): number[] {
  return ends.map((end, index) => start + ((index > 0 ? (ends[index - 1] ?? 0) : 0) + end) / 2_000);
}

/**
 * All of them over one row of times. Lines of the same name are one; where two parts tell the same time, the later
 * part holds. A time that only others have is no gap of a line.
 */
export function joined(parts: readonly Courses[]): Courses {
  const filled = parts.filter((part) => part.times.length > 0 || part.lines.length > 0);
  if (filled.length <= 1) return filled[0] ?? NONE;
  const times = [...new Set(filled.flatMap((part) => part.times))].sort((one, other) => one - other);
  const places = new Map(times.map((time, index) => [time, index]));
  const rows = new Map<string, { mean: Row; min: Row; max: Row; hasBand: boolean }>();
  for (const part of filled) {
    for (const { name, course } of part.lines) {
      const row = rows.get(name) ?? { mean: empty(times), min: empty(times), max: empty(times), hasBand: false };
      rows.set(name, row);
      row.hasBand ||= course.min !== undefined && course.max !== undefined;
      part.times.forEach((time, index) => {
        const place = places.get(time) ?? 0;
        row.mean[place] = course.mean[index];
        row.min[place] = (course.min ?? course.mean)[index];
        row.max[place] = (course.max ?? course.mean)[index];
      });
    }
  }
  const lines = [...rows].map(([name, { mean, min, max, hasBand }]) => ({
    name,
    course: hasBand ? { mean, min, max } : { mean },
  }));
  return { times, lines };
}

type Row = (number | null | undefined)[];

function empty(times: readonly number[]): Row {
  return new Array<undefined>(times.length).fill(undefined);
}

/** Only what lies in a span, both ends with it. */
export function within(courses: Courses, from: number, to: number): Courses {
  const first = courses.times.findIndex((time) => time >= from);
  if (first < 0) return { times: [], lines: courses.lines.map(({ name }) => ({ name, course: { mean: [] } })) };
  const after = courses.times.findIndex((time) => time > to);
  const end = after < 0 ? courses.times.length : after;
  const cut = (values: Values): Values => values.slice(first, end);
  const lines = courses.lines.map(({ name, course: { mean, min, max } }) => ({
    name,
    course: min && max ? { mean: cut(mean), min: cut(min), max: cut(max) } : { mean: cut(mean) },
  }));
  return { times: courses.times.slice(first, end), lines };
}

/** What was kept, and behind its end what came in since. */
export function withTail(kept: Courses, tail: Courses): Courses {
  return joined([kept, within(tail, newestRead(kept) + 0.001, Infinity)]);
}

/** The newest time at which any line was read; -Infinity where none was. */
export function newestRead(courses: Courses): number {
  for (let index = courses.times.length - 1; index >= 0; index--) {
    if (courses.lines.some(({ course }) => isRead(course.mean[index]))) return courses.times[index] ?? -Infinity;
  }
  return -Infinity;
}

/** With a gap wherever two points are further apart than this, in seconds: a line over it would tell what nobody read. */
export function withGaps(courses: Courses, longest: number): Courses {
  const breaks = courses.times.flatMap((time, index) => {
    const before = courses.times[index - 1];
    return before !== undefined && time - before > longest ? [(before + time) / 2] : [];
  });
  if (breaks.length === 0) return courses;
  const nothing = breaks.map(() => null);
  const lines = courses.lines.map(({ name, course }) => ({
    name,
    course: course.min ? { mean: nothing, min: nothing, max: nothing } : { mean: nothing },
  }));
  return joined([courses, { times: breaks, lines }]);
}

/** Without the gaps that are this short, in seconds: a reading was late there, and none is missing. */
export function bridged(courses: Courses, longest: number): Courses {
  const { times } = courses;
  const lines = courses.lines.map(({ name, course: { mean, min, max } }) => {
    let last = -Infinity;
    const late = new Set<number>();
    mean.forEach((value, index) => {
      if (!isRead(value)) return;
      const at = times[index] ?? 0;
      if (at - last <= longest) for (let between = index - 1; between >= 0 && !isRead(mean[between]); between--) late.add(between);
      last = at;
    });
    const without = (values: Values): Values => values.map((value, index) => (late.has(index) ? undefined : value));
    return { name, course: min && max ? { mean: without(mean), min: without(min), max: without(max) } : { mean: without(mean) } };
  });
  return { times, lines };
}

/** Points that no line shows, since there is a gap on both sides of them. */
export function alone(values: ArrayLike<number | null | undefined>): number[] {
  const told = Array.from(values, (value, index) => ({ value, index })).filter(({ value }) => value !== undefined);
  return told.flatMap(({ value, index }, at) => (isRead(value) && !isRead(told[at - 1]?.value) && !isRead(told[at + 1]?.value) ? [index] : []));
}

/** Several lines as one: the mean of what was read of each, from the smallest to the largest of all. */
export function together(courses: Courses, name: string): Courses {
  const mean: Row = [], min: Row = [], max: Row = [];
  courses.times.forEach((_, index) => {
    const read = courses.lines.flatMap(({ course }) => {
      const value = course.mean[index];
      return isRead(value) ? [{ value, min: course.min?.[index] ?? value, max: course.max?.[index] ?? value }] : [];
    });
    mean.push(read.length === 0 ? null : read.reduce((sum, each) => sum + each.value, 0) / read.length);
    min.push(read.length === 0 ? null : Math.min(...read.map((each) => each.min)));
    max.push(read.length === 0 ? null : Math.max(...read.map((each) => each.max)));
  });
  return { times: courses.times, lines: [{ name, course: { mean, min, max } }] };
}

/** Each line on top of those before it; for bars, which stand on each other. What is 0 has no bar. */
export function stacked(courses: Courses): (number | null)[][] {
  const height = courses.times.map(() => 0);
  return courses.lines.map(({ course }) =>
    courses.times.map((_, index) => {
      const own = course.mean[index] ?? 0;
      height[index] = (height[index] ?? 0) + own;
      return own === 0 ? null : (height[index] ?? 0);
    }),
  );
}

/** The largest lines by their sums, and all others as one. */
export function largest(courses: Courses, count: number, others: string): Courses {
  if (courses.lines.length <= count) return courses;
  const sum = ({ course }: Line): number => course.mean.reduce<number>((all, value) => all + (value ?? 0), 0);
  const ordered = [...courses.lines].sort((one, other) => sum(other) - sum(one));
  const rest = ordered.slice(count);
  const mean = courses.times.map((_, index) => rest.reduce((all, { course }) => all + (course.mean[index] ?? 0), 0));
  return { times: courses.times, lines: [...ordered.slice(0, count), { name: others, course: { mean } }] };
}

export interface Sum {
  readonly min: number;
  readonly max: number;
  readonly mean: number;
  /** Points that were read. */
  readonly count: number;
  /** Stretches between them in which nothing was. */
  readonly gaps: number;
}

/** A course in figures; undefined where nothing was read of it. */
export function sumOf(course: Course): Sum | undefined {
  let min = Infinity, max = -Infinity, total = 0, count = 0, gaps = 0, isGap = false;
  course.mean.forEach((value, index) => {
    if (isRead(value)) {
      min = Math.min(min, course.min?.[index] ?? value);
      max = Math.max(max, course.max?.[index] ?? value);
      total += value;
      gaps += isGap && count > 0 ? 1 : 0;
      count += 1;
      isGap = false;
    } else if (value === null) isGap = true;
  });
  return count === 0 ? undefined : { min, max, mean: total / count, count, gaps };
}

/** The largest value that any line reaches; 0 where nothing was read. */
export function topOf(courses: Courses): number {
  return Math.max(0, ...courses.lines.map(({ course }) => sumOf(course)?.max ?? 0));
}

export function isRead(value: number | null | undefined): value is number {
  return value !== null && value !== undefined;
}
