import assert from "node:assert/strict";
import { test } from "node:test";

import { coursesOf } from "../src/dashboard/usage/history.ts";
import { barsOf, failedShare, NAMES_MAX, OTHERS, SPANS, startOf, stepsOf, type Span } from "../src/dashboard/usage/spans.ts";
import type { GetQueueHistoryResponse, ListUsageResponse, UsageRow } from "../src/generated/messages.ts";
import { partly } from "./messages.ts";

const MINUTE = 60, HOUR = 3_600, DAY = 86_400;
const MIDNIGHT = Date.parse("2026-11-22T00:00:00Z") / 1_000;

function spanOf(key: string): Span {
  const found = SPANS.find((span) => span.key === key);
  assert.ok(found);
  return found;
}

function row(name: string, gpu_seconds_course: number[], more: Partial<UsageRow> = {}): UsageRow {
  const gpu_seconds = gpu_seconds_course.reduce((sum, value) => sum + value, 0);
  return { name, gpu_seconds, job_count: "4", failed_job_count: "1", start_count: "4", gpu_seconds_course, ...more };
}

test("bars begin at whole hours and days of the person's own clock, and the last one is that of now", () => {
  const now = MIDNIGHT + 10 * HOUR + 7 * MINUTE;
  assert.equal(startOf(spanOf("hour"), now, 0), now - 2 * MINUTE - 55 * MINUTE);
  assert.equal(startOf(spanOf("day"), now, 0), MIDNIGHT + 10 * HOUR - DAY + 30 * MINUTE);
  const east = -5.5 * HOUR;
  const start = startOf(spanOf("month"), now, east);
  assert.ok((start - east - MIDNIGHT) % DAY === 0, "a day begins at the person's midnight");
  assert.ok(start + 29 * DAY <= now && now < start + 30 * DAY);
});

test("the steps that are asked for come as they are asked for, and divide the bars", () => {
  for (const span of SPANS) {
    assert.equal(span.bar % span.step, 0);
    assert.equal(span.step % (5 * MINUTE), 0);
    for (const late of [1, span.bar / 2, span.bar - 1]) {
      const start = startOf(span, MIDNIGHT + late, 0);
      const steps = stepsOf(span, start, MIDNIGHT + late);
      const bucket = 5 * MINUTE;
      // As the scheduler makes its steps of so many at most: whole buckets, none more than needed.
      const length = Math.ceil((MIDNIGHT + late - start) / bucket) * bucket;
      assert.equal(Math.ceil(length / steps / bucket) * bucket, span.step, `${span.key}, ${late} s into a bar`);
      assert.ok(steps <= 1_000);
    }
  }
});

test("steps are summed up to bars, in GPU-hours, and small users are taken together", () => {
  const span = spanOf("day");
  const usage: ListUsageResponse = {
    start_time: "2026-11-22T00:00:00Z", step: "600s",
    rows: [row("ann", [1_800, 0, 1_800, 3_600]), ...Array.from({ length: NAMES_MAX + 1 }, (_, at) => row(`u${at}`, [0, 0, 0, 36]))],
  };
  const bars = barsOf(usage, span, "USAGE_GROUP_USER");
  assert.deepEqual(bars.times, [MIDNIGHT + 15 * MINUTE, MIDNIGHT + 45 * MINUTE]);
  assert.deepEqual(bars.lines[0], { name: "ann", course: { mean: [1, 1] } });
  assert.equal(bars.lines.length, NAMES_MAX + 1);
  assert.equal(bars.lines.at(-1)?.name, OTHERS);
  assert.ok(Math.abs((bars.lines.at(-1)?.course.mean[1] ?? 0) - 0.02) < 1e-9, "two users of 36 s each");
});

test("bands are called as people call them, and who used nothing has no bar", () => {
  const usage: ListUsageResponse = { start_time: "2026-11-22T00:00:00Z", step: "300s", rows: [row("BAND_HIGH", [3_600]), row("low", [0])] };
  assert.deepEqual(barsOf(usage, spanOf("hour"), "USAGE_GROUP_BAND").lines.map(({ name }) => name), ["high"]);
  assert.deepEqual(barsOf({ rows: [] }, spanOf("hour"), "USAGE_GROUP_BAND").lines, []);
});

test("failed jobs are a part of those that ended", () => {
  assert.equal(failedShare(row("ann", [])), 25);
  assert.equal(failedShare(row("ann", [], { job_count: "0" })), undefined);
});

test("the queue's history has a line for each band that had jobs", () => {
  const told = partly<GetQueueHistoryResponse>({
    start_time: "2026-11-22T00:00:00Z", step: "10s",
    bands: [
      { band: "BAND_HIGH", queued: { mean: [0, 2], min: [0, 1], max: [0, 3] }, wait_seconds: { mean: [-1, -1] } },
      { band: "BAND_LOW", queued: { mean: [4, -1], min: [4, -1], max: [4, -1] }, wait_seconds: { mean: [-1, 30] } },
    ],
  });
  const queued = coursesOf(told, "queued");
  assert.deepEqual(queued.times, [MIDNIGHT + 5, MIDNIGHT + 15]);
  assert.deepEqual(queued.lines.map(({ name, course }) => [name, course.mean, course.max]), [["high", [0, 2], [0, 3]], ["low", [4, null], [4, null]]]);
  assert.deepEqual(coursesOf(told, "wait_seconds").lines.map(({ name }) => name), ["low"]);
});
