// The history of the queue as courses, a line a band. Pure.

import type { GetQueueHistoryResponse } from "../../generated/messages.ts";
import { courseOf, timesOf, type Courses } from "../chart/course.ts";
import { seconds, time } from "../values.ts";
import { word } from "../words.ts";

export type SeriesName = "queued" | "running" | "wait_seconds";

export function coursesOf({ start_time: start, step, bands }: GetQueueHistoryResponse, which: SeriesName): Courses {
  const told = bands.filter((band) => band[which]?.mean.some((value) => value >= 0));
  const count = Math.max(0, ...told.map((band) => band[which]?.mean.length ?? 0));
  return {
    times: timesOf(time(start) ?? 0, seconds(step) ?? 0, count),
    lines: told.map((band) => ({ name: word(band.band), course: courseOf(band[which], count) })),
  };
}
