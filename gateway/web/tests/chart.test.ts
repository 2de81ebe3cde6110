import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
  courseOf, joined, largest, newestRead, stacked, sumOf, timesOf, timesOfEnds, together, within, withGaps, withTail, type Courses,
} from "../src/dashboard/chart/course.ts";
import { amount, around, between, moment, niceTop, scaleFor, spoken, steps, ticks } from "../src/dashboard/chart/words.ts";

const plain = (text: string): string => text.replaceAll("\u00a0", " ");

function courses(times: number[], lines: Readonly<Record<string, (number | null | undefined)[]>>): Courses {
  return { times, lines: Object.entries(lines).map(([name, mean]) => ({ name, course: { mean } })) };
}

test("what was told as -1, or not at all, was not read", () => {
  const course = courseOf({ mean: [1, -1, 0], min: [1, -1, 0], max: [2, -1] }, 4);
  assert.deepEqual(course, { mean: [1, null, 0, null], min: [1, null, 0, null], max: [2, null, null, null] });
  assert.deepEqual(sumOf(course), { min: 0, max: 2, mean: 0.5, count: 2, gaps: 1 });
  assert.equal(sumOf(courseOf(undefined, 3)), undefined);
});

test("a step stands at its middle, and so does a span that is told by its end", () => {
  assert.deepEqual(timesOf(100, 10, 3), [105, 115, 125]);
  assert.deepEqual(timesOfEnds(100, [2_000, 4_000, 10_000]), [101, 103, 107]);
});

test("courses of several nodes share one row of times, and lack no point of their own", () => {
  const both = joined([courses([1, 3], { "n1:0": [10, null] }), courses([2, 3], { "n2:0": [20, 30] })]);
  assert.deepEqual(both.times, [1, 2, 3]);
  assert.deepEqual(both.lines.map(({ course }) => course.mean), [[10, undefined, null], [undefined, 20, 30]]);
  assert.equal(sumOf(both.lines[0]?.course ?? { mean: [] })?.gaps, 0, "a time that only another node has is no gap");
});

test("what came in since stands behind what was kept, and never in its place", () => {
  const kept = courses([1, 2, 3], { a: [10, 20, null] });
  const tail = courses([1.5, 2.5, 3.5], { a: [99, 25, 35] });
  assert.equal(newestRead(kept), 2);
  const all = withTail(kept, tail);
  assert.deepEqual(all.times, [1, 2, 2.5, 3, 3.5]);
  assert.deepEqual(all.lines[0]?.course.mean, [10, 20, 25, null, 35]);
  assert.deepEqual(withTail(courses([], {}), tail).times, tail.times);
});

test("where nothing came for long there is a gap, and not a line over it", () => {
  const broken = withGaps(courses([0, 1, 2, 30, 31], { a: [1, 1, 1, 5, 5] }), 5);
  assert.deepEqual(broken.times, [0, 1, 2, 16, 30, 31]);
  assert.deepEqual(broken.lines[0]?.course.mean, [1, 1, 1, null, 5, 5]);
  assert.equal(sumOf(broken.lines[0]?.course ?? { mean: [] })?.gaps, 1);
});

test("a span is cut out with both its ends", () => {
  assert.deepEqual(within(courses([1, 2, 3, 4], { a: [1, 2, 3, 4] }), 2, 3), courses([2, 3], { a: [2, 3] }));
  assert.deepEqual(within(courses([1, 2], { a: [1, 2] }), 5, 6), courses([], { a: [] }));
});

test("many GPUs together are their mean, from the smallest to the largest of all", () => {
  const all = together(
    { times: [1, 2], lines: [
      { name: "a", course: { mean: [10, null], min: [5, null], max: [20, null] } },
      { name: "b", course: { mean: [30, null] } },
    ] },
    "2 GPUs",
  );
  assert.deepEqual(all.lines, [{ name: "2 GPUs", course: { mean: [20, null], min: [5, null], max: [30, null] } }]);
});

test("bars stand on each other, and past a number of users the rest are one", () => {
  const used = courses([1, 2], { ann: [1, 2], bob: [3, null], cat: [9, 9], dan: [0, 1] });
  const shown = largest(used, 2, "others");
  assert.deepEqual(shown.lines.map(({ name }) => name), ["cat", "ann", "others"]);
  assert.deepEqual(shown.lines[2]?.course.mean, [3, 1]);
  assert.deepEqual(stacked(shown), [[9, 9], [10, 11], [13, 12]]);
  assert.equal(largest(used, 4, "others"), used);
});

test("amounts are told in the unit that fits the chart", () => {
  const memory = scaleFor("MB", 80_000);
  assert.equal(plain(amount(13_400, memory)), "13.4 GB");
  assert.equal(plain(amount(80, scaleFor("MB", 900))), "80 MB");
  assert.equal(amount(null, memory), "–");
  assert.equal(plain(between(80, 97, scaleFor("%", 100))), "80–97 %");
  assert.equal(plain(between(80.1, 80.4, scaleFor("%", 100))), "80 %");
  assert.equal(plain(amount(90, scaleFor("s", 300))), "1.5 min");
  assert.equal(plain(amount(0.25, scaleFor("GPU-hours", 0.5))), "0.25 GPU-hours");
});

test("axes end where people count", () => {
  assert.deepEqual([0, 0.3, 7, 41, 240, 701, 1_000].map(niceTop), [1, 0.4, 8, 50, 250, 800, 1_000]);
  assert.deepEqual(steps(60).filter((step) => step >= 60 && step <= 600), [60, 120, 300, 600], "minutes are counted in minutes");
  assert.deepEqual(around(41, 66), [40, 70]);
  assert.deepEqual(around(50, 51), [40, 60]);
  assert.deepEqual(around(3, 4), [0, 20]);
});

test("times are as exact as the chart needs, and the day stands where it begins", () => {
  const midnight = new Date(2026, 10, 22).getTime() / 1_000;
  assert.deepEqual(ticks([midnight - 60, midnight, midnight + 60], 60), ["23:59", "00:00\n22 Nov", "00:01"]);
  assert.deepEqual(ticks([midnight], 86_400), ["22 Nov"]);
  assert.deepEqual(ticks([midnight + 5], 5), ["00:00:05"]);
  assert.deepEqual([60, 6 * 3_600, 7 * 86_400, 90 * 86_400].map((span) => moment(midnight + 5, span)), [
    "00:00:05", "00:00", "22 Nov 00:00", "22 Nov",
  ]);
});

test("ears hear of each line what eyes see", () => {
  const shown: Courses = { times: [1, 2, 3], lines: [
    { name: "GPU 0", course: { mean: [10, null, 90], min: [0, null, 80], max: [20, null, 100] } },
    { name: "GPU 1", course: { mean: [null, null, null] } },
  ] };
  const said = plain(spoken("Utilisation", shown, scaleFor("%", 100)));
  assert.match(said, /GPU 0: smallest 0 %, largest 100 %, mean 50 %, 2 points, with 1 gap\. GPU 1: nothing was read\.$/);
  assert.equal(spoken("Utilisation", { times: [], lines: [] }, scaleFor("%", 0)), "Utilisation: nothing was read.");
});

// What eyes that lack one kind of cones see: Machado, Oliveira and Fernandes 2009, severity 1.
const EYES: Readonly<Record<string, readonly (readonly [number, number, number])[]>> = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
/** Distances in Oklab; below it two lines would be taken for one. */
const APART = { first: 0.075, all: 0.045 };

type Colour = [number, number, number];

function linear(hex: string): Colour {
  const of = (at: number): number => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return [of(1), of(3), of(5)];
}

function seen(colour: Colour, eyes: string): Colour {
  const row = ([red, green, blue]: readonly [number, number, number]): number =>
    Math.min(1, Math.max(0, red * colour[0] + green * colour[1] + blue * colour[2]));
  const [first, second, third] = EYES[eyes] ?? [];
  assert.ok(first && second && third);
  return [row(first), row(second), row(third)];
}

function oklab([red, green, blue]: Colour): Colour {
  const l = Math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const m = Math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const s = Math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function luminance([red, green, blue]: Colour): number {
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const styles = readFileSync("src/dashboard/chart.css", "utf8").split("@media (prefers-color-scheme: dark)");
const grounds = ["#fffefb", "#1e1d1a"];

for (const [place, scheme] of ["light", "dark"].entries()) {
  const colours = [...(styles[place] ?? "").matchAll(/--line-(\d+): (#[0-9a-f]{6});/g)].map((found) => found[2] ?? "");

  test(`the colours of lines stand out from their ground: ${scheme}`, () => {
    assert.equal(colours.length, 12);
    const ground = luminance(linear(grounds[place] ?? ""));
    for (const colour of colours) {
      const own = luminance(linear(colour));
      const ratio = (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
      assert.ok(ratio >= 3, `${colour} on ${grounds[place]}: ${ratio.toFixed(2)}`);
    }
  });

  test(`the colours of lines are told apart by colour-blind eyes: ${scheme}`, () => {
    const close: string[] = [];
    for (const eyes of Object.keys(EYES)) {
      const labs = colours.map((colour) => oklab(seen(linear(colour), eyes)));
      labs.forEach((one, first) => labs.slice(first + 1).forEach((other, offset) => {
        const second = first + 1 + offset;
        const apart = Math.hypot(one[0] - other[0], one[1] - other[1], one[2] - other[2]);
        if (apart < (second < 6 ? APART.first : APART.all)) close.push(`${eyes}: ${first} and ${second}: ${apart.toFixed(3)}`);
      }));
    }
    assert.deepEqual(close, []);
  });
}
