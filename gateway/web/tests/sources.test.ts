import assert from "node:assert/strict";
import { test } from "node:test";

import { alone, isRead, sumOf } from "../src/dashboard/chart/course.ts";
import { finest, live, longer, memoryOf, nothing, ofHistory, ofSeries, over, Readings, TAIL_POINTS_MAX, whollyWithin, type Charts } from "../src/dashboard/chart/sources.ts";
import type { GetJobStatsResponse, GetNodeHistoryResponse, WatchDevicesResponse } from "../src/generated/messages.ts";
import { partly } from "./messages.ts";

const START = "2026-11-22T10:00:00Z";
const AT = Date.parse(START) / 1_000;
const plain = (text: string): string => text.replaceAll("\u00a0", " ");

function history(node: string, indices: readonly (number | undefined)[], mean: number[], step = "10s"): GetNodeHistoryResponse {
  return {
    start_time: START, step,
    devices: indices.map((index) => ({
      node, ...(index === undefined ? {} : { index }), uuid: "", name: "", memory_bytes: "80000000000",
      utilization_percent: { mean, min: mean.map((value) => (value > 0 ? value - 1 : value)), max: mean.map((value) => (value < 0 ? value : value + 1)) },
    })),
  };
}

function readings(second: number, utilization_percent: number, memory: string): WatchDevicesResponse {
  return partly({
    is_whole: false, removed_uuids: [], view_time: new Date((AT + second) * 1_000).toISOString(),
    devices: [0, 1].map((index) => ({
      node: "n1", device: { uuid: `u${index}`, index, name: "V", memory_bytes: "80000000000" },
      sample: { utilization_percent, memory_used_bytes: memory, power_mw: "250000", summary: { utilization_percent: { min: 1, max: 99, mean: 50 } } },
    })),
  });
}

function stats(values: number[]): GetJobStatsResponse {
  const nothing = values.map(() => -1);
  return {
    sample_count: "9", attempt: 1, is_final: true, gpu_seconds: 9, processes: [], is_incomplete: false,
    devices: [{
      node: "n1", index: 0, name: "V", uuid: "u0",
      series: { offset_ms: values.map((_, at) => String((at + 1) * 2_000)), utilization_percent: values, memory_used_mb: nothing, temperature_c: nothing, power_draw_w: nothing },
    }],
  };
}

const first = new Map([["n1", new Set([0])]]);

test("of a node's history only the devices of the job are shown", () => {
  const charts = ofHistory([history("n1", [0, 1, 2], [10, -1, 30])], first);
  assert.deepEqual(charts.utilization_percent.times, [AT + 5, AT + 15, AT + 25]);
  assert.deepEqual(charts.utilization_percent.lines.map(({ name }) => plain(name)), ["GPU 0"]);
  assert.deepEqual(charts.utilization_percent.lines[0]?.course, { mean: [10, null, 30], min: [9, null, 29], max: [11, null, 31] });
  assert.deepEqual(charts.power_draw_w.lines[0]?.course.mean, []);
  assert.equal(memoryOf([history("n1", [0, 1], [])], first), 80_000);
});

test("with several nodes devices are called by both, and a whole node by its name", () => {
  const wanted = new Map<string, ReadonlySet<number> | "all">([["n1", new Set([0])], ["n2", "all"]]);
  const charts = ofHistory([history("n1", [0, 1], [1]), history("n2", [0, undefined], [2])], wanted);
  assert.deepEqual(charts.utilization_percent.lines.map(({ name }) => name), ["n1:0", "n2:0", "n2"]);
});

test("what a GPU did for somebody else just before is not shown of a job", () => {
  const charts = ofHistory([history("n1", [0], [99, 10, 20, 99])], first);
  const own = whollyWithin(charts, AT + 8, AT + 31, 10);
  assert.deepEqual(own.utilization_percent.lines[0]?.course.mean, [10, 20]);
  assert.deepEqual(whollyWithin(charts, AT + 8, Infinity, 10).utilization_percent.times.length, 3, "one that runs has no end yet");
});

test("readings go on where the history ends, in its units, and with what lay between", () => {
  const kept = ofHistory([history("n1", [0], [10, 20])], first);
  let tail = nothing();
  const heard = new Readings(first);
  for (const second of [8, 16, 21, 60]) tail = longer(tail, heard.take(readings(second, 70, "13000000000")));
  const all = live(kept, tail);
  assert.deepEqual(all.utilization_percent.times, [5, 15, 16, 21, 40.5, 60].map((second) => AT + second));
  assert.deepEqual(all.utilization_percent.lines[0]?.course, {
    mean: [10, 20, 50, 50, null, 50], min: [9, 19, 1, 1, null, 1], max: [11, 21, 99, 99, null, 99],
  });
  assert.deepEqual(all.memory_used_mb.lines[0]?.course.mean.slice(-1), [13_000]);
  assert.deepEqual(all.power_draw_w.lines[0]?.course.mean.slice(-1), [250]);
  assert.deepEqual(all.temperature_c.lines[0]?.course.mean.slice(-1), [null]);
});

test("a device of which nothing is told is as it was, and one that is gone has no more points", () => {
  const heard = new Readings(new Map([["n1", "all"]]));
  const values = (told: WatchDevicesResponse): unknown[] =>
    heard.take(told).utilization_percent.lines.map(({ name, course: { mean, min } }) => [plain(name), mean[0], min?.[0]]);
  const both = readings(1, 70, "1");
  assert.deepEqual(values({ ...both, is_whole: true }), [["GPU 0", 50, 1], ["GPU 1", 50, 1]]);
  assert.deepEqual(values({ ...readings(2, 70, "1"), devices: both.devices.slice(1) }), [["GPU 0", 70, 70], ["GPU 1", 50, 1]]);
  assert.deepEqual(values({ ...readings(3, 70, "1"), devices: [], removed_uuids: ["u0"] }), [["GPU 1", 70, 70]]);
  assert.deepEqual(values({ ...readings(4, 70, "1"), devices: [], is_whole: true }), []);
});

test("a page that is left open over night keeps no more readings than it has room for", () => {
  let tail = nothing();
  const heard = new Readings(first);
  for (let second = 0; second < TAIL_POINTS_MAX + 50; second++) tail = longer(tail, heard.take(readings(second, 1, "1")));
  assert.equal(tail.power_draw_w.times.length, TAIL_POINTS_MAX);
  assert.equal(tail.power_draw_w.times.at(-1), AT + TAIL_POINTS_MAX + 49);
});

test("an attempt is shown by the finer of history and its own series", () => {
  const values = Array.from({ length: 40 }, (_, at) => at);
  const series = ofSeries(stats(values), AT);
  assert.deepEqual(series.utilization_percent.times.slice(0, 2), [AT + 1, AT + 3]);
  assert.deepEqual(series.power_draw_w.lines, [], "a counter that was never read has no line");
  const fine = ofHistory([history("n1", [0], [-1, ...values, -1], "2s")], first);
  assert.deepEqual(finest(fine, series, false).utilization_percent.lines[0]?.course.min?.slice(1, 3), [0, 1]);
  assert.equal(finest(fine, series, false).utilization_percent.times.length, 40, "steps beside it are not shown");
  const rolled = ofHistory([history("n1", [0], [1, 5, 9, 13, 17, 21, 25, 29, 33], "10s")], first);
  const long = ofSeries(stats(Array.from({ length: 45 }, (_, at) => at)), AT);
  const course = finest(rolled, long, false).utilization_percent.lines[0]?.course;
  assert.deepEqual([course?.mean[7], course?.min?.[7], course?.max?.[7]], [7, 4, 7], "within the second step of the history");
  const coarse = ofHistory([history("n1", [0], values.map(() => 5), "2s")], first);
  assert.equal(finest(coarse, series, false).utilization_percent, series.utilization_percent);
  assert.equal(finest(nothing(), series, false).utilization_percent, series.utilization_percent);
});

test("the chart of a job that is over has the smallest and the largest value, wherever they were read", () => {
  const extremes = (charts: Charts): unknown[] => {
    const sum = sumOf(charts.utilization_percent.lines[0]?.course ?? { mean: [] });
    return [sum?.min, sum?.max];
  };
  // Placed and ended within a step each, which may be of somebody else's job as well: only its own series tells of them.
  const read = [2, 91, 92, 93, 92, 91, 92, 93, 92, 3];
  const exact: GetNodeHistoryResponse = { ...history("n1", [0], []), step: "2s" };
  const steps = { ...exact, devices: exact.devices.map((each) => ({ ...each, utilization_percent: { mean: read, min: read, max: read } })) };
  const cut = whollyWithin(ofHistory([steps], first), AT + 0.5, AT + 19.5, 2);
  const own = ofSeries(stats([88, 91, 92, 93, 92, 91, 92, 93, 92, 97]), AT);
  assert.deepEqual(extremes(cut), [91, 93]);
  assert.deepEqual(extremes(finest(cut, own, true)), [88, 97]);
  assert.deepEqual(extremes(finest(cut, own, false)), [91, 93], "of one that runs the series is made of the history");
  // A machine that is busy tells seldom: more steps than points, and each of them is in the band of one.
  const seldom = ofSeries(stats([90, 95, 90, 95, 90, 95, 90, 95, 90]), AT);
  const short = history("n1", [0], [50, 50, 50, 50, 50, 99, 99, 99, 99, 99, 99, 98, 98, 98], "1s");
  assert.deepEqual(extremes(finest(ofHistory([short], first), seldom, true)), [49, 100]);
  const late = history("n1", [0], [-1, -1, 60, 60, 60, 60, 61, 60], "1s");
  assert.deepEqual(extremes(finest(ofHistory([late], first), seldom, true)), [59, 95]);
});

test("the charts of a fresh job are lines from the second point on, however late a step is told", () => {
  const wanted = new Map([["n1", new Set([0, 1])]]);
  // A step is a second, and beats came every two: of each other step nothing is known, nor of the newest.
  const kept = ofHistory([history("n1", [0, 1], [90, -1, 92, -1, -1], "1s")], wanted);
  const heard = new Readings(wanted);
  const tail = [1.4, 3.4, 4.2].reduce((all, second) => longer(all, heard.take(readings(second, 80, "1"))), nothing());
  for (const charts of [live(kept, tail), over(kept)]) {
    for (const { course } of charts.utilization_percent.lines) {
      const read = course.mean.flatMap((value, index) => (isRead(value) ? [index] : []));
      assert.ok(read.length >= 2);
      assert.ok(!course.mean.slice(read[0], read.at(-1)).includes(null), "a gap between two readings that are near");
      assert.deepEqual(alone(course.mean), []);
    }
  }
  assert.equal(over(kept).utilization_percent.lines[0]?.course.mean.at(-1), null, "behind the last reading nothing is known");
});

test("where nothing was heard for long the line still ends, and what stands alone is a dot", () => {
  const charts = over(ofHistory([history("n1", [0], [10, -1, -1, 40, -1, 60])], first));
  assert.deepEqual(charts.utilization_percent.lines[0]?.course.mean, [10, null, null, 40, null, 60]);
  assert.deepEqual(alone([10, null, undefined, 40, undefined, 41, null, 60]), [0, 7]);
});
