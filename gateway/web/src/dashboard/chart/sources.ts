// From what the scheduler tells of devices to courses: their history, a job's own series, and readings as they come. Pure.

import type { DeviceHistory, GetJobStatsResponse, GetNodeHistoryResponse, NodeDevice, WatchDevicesResponse } from "../../generated/messages.ts";
import { seconds, time, whole } from "../values.ts";
import {
  bridged, courseOf, isRead, joined, NONE, timesOf, timesOfEnds, valueOf, withGaps, within, withTail, type Course,
  type Courses, type Line, type Values,
} from "./course.ts";
import { deviceName } from "../job/words.ts";

/** The counters of a device that have charts, by their names in every message. */
export const COUNTERS = ["utilization_percent", "memory_used_mb", "temperature_c", "power_draw_w"] as const;
export type Counter = (typeof COUNTERS)[number];

export type Charts = Readonly<Record<Counter, Courses>>;

/** Live readings kept behind the history: more than come until the history is read anew. */
export const TAIL_POINTS_MAX = 900;
/** Live readings further apart than this were not all heard. In seconds. */
export const TAIL_GAP_SECONDS = 15;

/** The devices that a chart is of: by node their indices, or all of a node. */
export type Wanted = ReadonlyMap<string, ReadonlySet<number> | "all">;

export function nothing(): Charts {
  return each(() => NONE);
}

export function each(make: (counter: Counter) => Courses): Charts {
  return {
    utilization_percent: make("utilization_percent"), memory_used_mb: make("memory_used_mb"),
    temperature_c: make("temperature_c"), power_draw_w: make("power_draw_w"),
  };
}

/** The history of wanted devices, of one node or of several. */
export function ofHistory(answers: readonly GetNodeHistoryResponse[], wanted: Wanted): Charts {
  return each((counter) => joined(answers.map((answer) => {
    const step = seconds(answer.step) ?? 0;
    const devices = answer.devices.filter((device) => isWanted(wanted, device.node, device.index));
    const count = Math.max(0, ...devices.map((device) => device[counter]?.mean.length ?? 0));
    const lines = devices.map((device): Line => ({ name: nameOf(device, wanted), course: courseOf(device[counter], count) }));
    return { times: timesOf(time(answer.start_time) ?? 0, step, count), lines };
  })));
}

function nameOf(device: Pick<DeviceHistory, "node" | "index">, wanted: Wanted): string {
  return device.index === undefined ? device.node : deviceName(device.node, device.index, wanted.size > 1);
}

function isWanted(wanted: Wanted, node: string, index: number | undefined): boolean {
  const indices = wanted.get(node);
  return indices !== undefined && (indices === "all" || (index !== undefined && indices.has(index)));
}

/** A job's own series: means alone, from the beginning of its attempt on. */
export function ofSeries(stats: GetJobStatsResponse, start: number): Charts {
  const severalNodes = new Set(stats.devices.map(({ node }) => node)).size > 1;
  return each((counter) => joined(stats.devices.flatMap(({ node, index, series }) => {
    const values = series?.[counter];
    if (series === undefined || values === undefined || values.every((value) => value < 0)) return [];
    const times = timesOfEnds(start, series.offset_ms.map(whole));
    return [{ times, lines: [{ name: deviceName(node, index, severalNodes), course: { mean: values.map(valueOf) } }] }];
  })));
}

/** Readings as they come. A message has the devices of which something changed; all others are as they were. */
export class Readings {
  private newest = new Map<string, NodeDevice>();

  constructor(private readonly wanted: Wanted) {}

  /** The next point of every wanted device, to be put behind a history. */
  take(told: WatchDevicesResponse): Charts {
    if (told.is_whole) this.newest = new Map();
    for (const uuid of told.removed_uuids) this.newest.delete(uuid);
    const fresh = told.devices.filter(({ node, device }) => isWanted(this.wanted, node, device.index));
    for (const each of fresh) this.newest.set(each.device.uuid, each);
    const at = time(told.view_time);
    const devices = at === undefined ? [] : [...this.newest.values()];
    const isNew = new Set(fresh);
    return each((counter) => ({
      times: devices.length === 0 || at === undefined ? [] : [at],
      lines: devices.map((each) => ({
        name: deviceName(each.node, each.device.index, this.wanted.size > 1),
        course: pointOf(each, counter, isNew.has(each)),
      })),
    }));
  }
}

/** One reading, and what lay between it and the one before where it is new. */
function pointOf({ sample }: NodeDevice, counter: Counter, isNew: boolean): Course {
  const [name, per] = FIELDS[counter];
  const last = sample?.[name];
  const value = (read: number | undefined): number | null => (read === undefined ? null : read / per);
  const span = isNew ? sample?.summary?.[name] : undefined;
  const mean = value(span?.mean ?? (last === undefined ? undefined : whole(last)));
  return { mean: [mean], min: [span ? value(span.min) : mean], max: [span ? value(span.max) : mean] };
}

const FIELDS = {
  utilization_percent: ["utilization_percent", 1],
  memory_used_mb: ["memory_used_bytes", 1e6],
  temperature_c: ["temperature_c", 1],
  power_draw_w: ["power_mw", 1e3],
} as const;

/** The tail with one more message; what is older than there is room for is dropped. */
export function longer(tail: Charts, more: Charts): Charts {
  return each((counter) => {
    const all = joined([tail[counter], more[counter]]);
    return all.times.length <= TAIL_POINTS_MAX ? all : within(all, all.times[all.times.length - TAIL_POINTS_MAX] ?? 0, Infinity);
  });
}

/** What was kept, and behind it what came since, with gaps where nothing was heard for long. */
export function live(kept: Charts, tail: Charts): Charts {
  return over(each((counter) => withTail(kept[counter], withGaps(tail[counter], TAIL_GAP_SECONDS))));
}

/** What was kept, with gaps where nothing was heard for long: steps of a second are shorter than beats that come late. */
export function over(kept: Charts): Charts {
  return each((counter) => bridged(kept[counter], TAIL_GAP_SECONDS));
}

/** Only the steps that lie whole in a span: in one that begins before it, the device may have been somebody else's. */
export function whollyWithin(charts: Charts, from: number, to: number, step: number): Charts {
  return each((counter) => within(charts[counter], from + step / 2, to - step / 2));
}

/** Points of the history from which it tells more of a job than the job's own series, which has no smallest and largest. */
const HISTORY_POINTS_MIN = 8;
const HISTORY_POINTS_SHARE = 4;
/** Steps of a history from which they are a band around the line of a series. */
const BAND_STEPS_MIN = 2;

/**
 * The history, with its smallest and largest values, as long as it is fine enough. Where it was rolled up meanwhile the
 * job's own series is the line and the history the band around it; where there is too little of it, the series alone.
 * `isOver`: the series is what was read of the job alone, so that it goes on where no step of the history is the job's
 * alone, at its beginning and its end.
 */
export function finest(history: Charts, series: Charts, isOver: boolean): Charts {
  return each((counter) => {
    const [fine, own] = [detail(history[counter]), detail(series[counter])];
    if (fine >= own || fine >= HISTORY_POINTS_MIN && fine * HISTORY_POINTS_SHARE >= own) {
      const whole = trimmed(history[counter]);
      return isOver ? joined([beside(series[counter], whole), whole]) : whole;
    }
    return fine >= BAND_STEPS_MIN ? banded(series[counter], history[counter]) : series[counter];
  });
}

/** The length of steps by the first two of them, in seconds. */
function stepOf({ times: [first = 0, second = first + 1] }: Courses): number {
  return second - first;
}

/** The points that lie before the first of these steps, and behind the last one. */
function beside(points: Courses, steps: Courses): Courses {
  const [first, last] = [steps.times[0], steps.times.at(-1)];
  if (first === undefined || last === undefined) return NONE;
  const half = stepOf(steps) / 2;
  return joined([within(points, -Infinity, first - half), within(points, last + half, Infinity)]);
}

/** Lines with the smallest and largest values of the steps that are nearest to each of their points: none is left out. */
function banded(lines: Courses, steps: Courses): Courses {
  const known = new Map(steps.lines.map(({ name, course }) => [name, course]));
  return {
    times: lines.times,
    lines: lines.lines.map(({ name, course: { mean } }) => {
      const around = known.get(name);
      const read = mean.flatMap((value, index) => (isRead(value) ? [index] : []));
      const min = [...mean], max = [...mean];
      let at = 0;
      steps.times.forEach((time, step) => {
        const away = (place: number): number => Math.abs((lines.times[read[place] ?? -1] ?? Infinity) - time);
        while (away(at + 1) <= away(at) && at + 1 < read.length) at += 1;
        const index = read[at];
        if (index === undefined) return;
        min[index] = either(Math.min, min[index], around?.min?.[step]);
        max[index] = either(Math.max, max[index], around?.max?.[step]);
      });
      return { name, course: { mean, min, max } };
    }),
  };
}

/** The one of two values that `pick` chooses, where both were read. */
function either(pick: (...values: number[]) => number, one: Values[number], other: Values[number]): Values[number] {
  return isRead(one) && isRead(other) ? pick(one, other) : one;
}

/** Points that say something new: one long step of a history is told once for every short one that lies in it. */
function detail(courses: Courses): number {
  const changes = courses.lines.map(({ course: { mean, min, max } }) => mean.filter((value, index) =>
    isRead(value) && (value !== mean[index - 1] || min?.[index] !== min?.[index - 1] || max?.[index] !== max?.[index - 1])).length);
  return Math.max(0, ...changes);
}

/** Without the steps at both ends of which nothing was read. */
function trimmed(courses: Courses): Courses {
  const has = (index: number): boolean => courses.lines.some(({ course }) => isRead(course.mean[index]));
  const read = courses.times.flatMap((at, index) => (has(index) ? [at] : []));
  const [first, last] = [read[0], read.at(-1)];
  return first === undefined || last === undefined ? courses : within(courses, first, last);
}

/** The largest memory of the wanted devices, in MB; 0 where it is not known. */
export function memoryOf(answers: readonly GetNodeHistoryResponse[], wanted: Wanted): number {
  const known = answers.flatMap(({ devices }) => devices.filter(({ node, index }) => isWanted(wanted, node, index)));
  return Math.max(0, ...known.map(({ memory_bytes: bytes }) => whole(bytes) / 1e6));
}

/** Lines of one name only. */
export function only(courses: Courses, name: string): Courses {
  return { times: courses.times, lines: courses.lines.filter((line) => line.name === name) };
}

export function namesOf(charts: Charts): string[] {
  return [...new Set(COUNTERS.flatMap((counter) => charts[counter].lines.map(({ name }) => name)))];
}

