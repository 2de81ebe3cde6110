// One chart: lines with the band from smallest to largest value, or bars that stand on each other. uPlot draws; what it
// shows can be read below it at the crosshair, which follows the pointer and the arrow keys, and is told to ears.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { h, write } from "../dom.ts";
import "./chart.css";
import { alone, isRead, stacked, sumOf, topOf, type Courses, type Line, type Values } from "./chart/course.ts";
import { amount, around, between, moment, niceTop, scaleFor, spoken, steps, ticks, type Scale, type Unit } from "./chart/words.ts";

/** What a chart is, whatever it shows. */
export interface Plan {
  /** Short and unique on its page: tests and styles find the chart by it. */
  readonly key: string;
  readonly title: string;
  readonly unit: Unit;
  /** "percent": 0 to 100. "zero": from 0 to a nice end. "around": from near the smallest to near the largest. */
  readonly axis: "percent" | "zero" | "around";
  readonly shape: "lines" | "bars";
  /** What is said where nothing was read. */
  readonly nothing: string;
  /** Charts with the same crosshair move it together. */
  readonly crosshair?: Crosshair;
}

/** Colours there are (chart.css); further lines use them again, dashed. */
export const COLOURS = 12;
const HEIGHT = 190;
/** Seconds between two times below a chart. */
const APART = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, ...[1, 2, 3, 4, 6, 12, 24, 48, 120, 168, 240, 336, 720].map((hours) => hours * 3_600)];
const OTHERS = "others";
let charts = 0;

/** A crosshair that several charts share. */
export class Crosshair {
  readonly followers = new Set<(time: number | null, from: Chart) => void>();
}

export class Chart {
  readonly element: HTMLElement;
  private readonly legend: HTMLElement;
  private readonly when: HTMLElement;
  private readonly unit = h("span", { class: "hint" });
  private readonly plot: HTMLElement;
  private readonly summary: HTMLElement;
  private readonly nothing: HTMLElement;
  private drawn: uPlot | undefined;
  private drawnNames = "";
  private courses: Courses = { times: [], lines: [] };
  private scale: Scale;
  private top = 0;
  /** The step at which the crosshair stands; undefined where there is none, and the newest is told. */
  private at: number | undefined;
  /** Whether it is being drawn with other data: where the crosshair is then is no word of a person. */
  private isSettling = false;

  constructor(private readonly plan: Plan, until: AbortSignal) {
    const id = `chart-${++charts}`;
    this.scale = scaleFor(plan.unit, 0);
    this.when = h("span", { class: "chart-when" });
    this.summary = h("p", { class: "unseen", id: `${id}-told` });
    this.legend = h("ul", { class: "chart-legend" });
    this.nothing = h("p", { class: "chart-nothing hint" }, plan.nothing);
    this.plot = h("div", {
      class: "chart-plot", role: "slider", tabindex: "0", "aria-orientation": "horizontal",
      "aria-label": `${plan.title}: arrow keys move the crosshair`, "aria-describedby": `${id}-told`,
      "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", onkeydown: (event) => this.press(event as KeyboardEvent),
      onblur: () => this.move(undefined, true),
    });
    const title = h("figcaption", {}, h("span", { class: "chart-title" }, plan.title), this.unit, this.when);
    this.element = h("figure", { class: "chart", "data-chart": plan.key }, title, this.plot, this.nothing, this.legend, this.summary);
    const sizes = new ResizeObserver(() => this.drawn?.setSize({ width: this.plot.clientWidth, height: HEIGHT }));
    sizes.observe(this.plot);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => this.rebuild(), { signal: until });
    const follow = (time: number | null, from: Chart): void => {
      if (from !== this) this.move(time === null ? undefined : this.nearest(time), false);
    };
    plan.crosshair?.followers.add(follow);
    until.addEventListener("abort", () => {
      plan.crosshair?.followers.delete(follow);
      sizes.disconnect();
      this.drawn?.destroy();
    });
    this.show({ times: [], lines: [] });
  }

  /** Show these courses. `top`: where the axis is to reach to at least, in the plan's unit; `more`: said behind the unit. */
  show(courses: Courses, top = 0, more = ""): void {
    const time = this.at === undefined ? undefined : this.courses.times[this.at];
    this.courses = courses;
    this.top = Math.max(top, topOf(courses), this.plan.shape === "bars" ? Math.max(0, ...highest(courses)) : 0);
    this.scale = scaleFor(this.plan.unit, this.top);
    write(this.unit, `${this.scale.unit}${more === "" ? "" : ` ${more}`}`);
    const isEmpty = !courses.lines.some(({ course }) => sumOf(course) !== undefined);
    this.nothing.hidden = !isEmpty;
    this.plot.hidden = isEmpty;
    this.legend.hidden = isEmpty;
    this.plot.setAttribute("aria-valuemax", String(Math.max(0, courses.times.length - 1)));
    write(this.summary, spoken(this.plan.title, courses, this.scale));
    this.element.dataset["points"] = String(courses.times.length);
    const names = JSON.stringify(courses.lines.map(({ name, course }) => [name, course.min !== undefined]));
    if (this.drawn === undefined || names !== this.drawnNames) {
      this.drawnNames = names;
      this.relist();
      this.rebuild();
    } else if (!isEmpty) {
      const u = this.drawn;
      this.settle(u, () => u.setData(this.data()));
    }
    if (this.drawn?.over.matches(":hover") !== true) this.move(time === undefined ? undefined : this.nearest(time), false);
  }

  /** Draw at once: a crosshair stays under the mouse, and else at its time, which has another place from then on. */
  private settle(u: uPlot, change: () => void): void {
    this.isSettling = !u.over.matches(":hover");
    u.batch(change);
    this.isSettling = false;
  }

  /** Draw from nothing: the lines are other ones, or the colours. */
  private rebuild(): void {
    this.drawn?.destroy();
    this.drawn = undefined;
    if (this.plot.hidden) return;
    this.drawn = new uPlot(this.options(), this.data(), this.plot);
    this.settle(this.drawn, () => undefined);
  }

  private data(): uPlot.AlignedData {
    const plain = (values: Values): (number | null | undefined)[] => [...values];
    const { times, lines } = this.courses;
    if (this.plan.shape === "bars") return [[...times], ...stacked(this.courses).reverse()];
    return [[...times], ...lines.flatMap(({ course: { mean, min, max } }) => (min && max ? [plain(mean), plain(max), plain(min)] : [plain(mean)]))];
  }

  private options(): uPlot.Options {
    const { shape } = this.plan;
    const text = { stroke: () => ink("--muted"), font: "12px system-ui, sans-serif", grid: { stroke: () => ink("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(200, this.plot.clientWidth),
      height: HEIGHT,
      padding: [10, 28, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: shape === "bars" ? { show: false } : { size: 8, width: 2 } },
      scales: { x: { time: true, ...(shape === "bars" ? { range: (u, min, max) => edges(u, min, max) } : {}) }, y: { range: (_, min, max) => this.range(min, max) } },
      axes: [
        { ...text, size: 40, gap: 6, space: 72, incrs: APART, values: (_, splits, __, ___, apart) => ticks(splits, apart) },
        { ...text, size: 52, gap: 6, space: 34, incrs: () => steps(this.scale.divisor), values: (_, splits) => splits.map((each) => (each / this.scale.divisor).toLocaleString("en")) },
      ],
      ...(shape === "bars" ? this.bars() : this.lines()),
      hooks: { setCursor: [(u) => this.pointed(u)] },
    };
  }

  private lines(): Pick<uPlot.Options, "series" | "bands"> {
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    this.courses.lines.forEach(({ name, course }, index) => {
      const colour = colourOf(name, index);
      const dash = index >= COLOURS ? { dash: [6, 4] } : {};
      series.push({ label: name, stroke: () => ink(colour), width: 1.75, points: { show: true, size: 5, filter: (u, each) => alone(u.data[each] ?? []) }, ...dash });
      if (course.min === undefined || course.max === undefined) return;
      bands.push({ series: [series.length, series.length + 1], fill: () => `${ink(colour)}30` });
      series.push(...["largest", "smallest"].map((which) => ({ label: `${name} ${which}`, width: 0, stroke: "transparent", points: { show: false } })));
    });
    return { series, bands };
  }

  private bars(): Pick<uPlot.Options, "series"> {
    const paths = uPlot.paths.bars?.({ size: [0.86, 88], align: 0 });
    const series = this.courses.lines.map(({ name }, index): uPlot.Series => ({
      label: name, fill: () => ink(colourOf(name, index)), stroke: () => ink("--surface"), width: 1, points: { show: false }, ...(paths ? { paths } : {}),
    }));
    return { series: [{}, ...series.reverse()] };
  }

  private range(min: number | null, max: number | null): [number, number] {
    if (this.plan.axis === "percent") return [0, 100];
    if (this.plan.axis === "around" && min !== null && max !== null) return around(min, max);
    return [0, niceTop(this.top / this.scale.divisor) * this.scale.divisor];
  }

  // --- what is read at the crosshair

  private relist(): void {
    this.legend.replaceChildren(...this.courses.lines.map(({ name }, index) =>
      h("li", {},
        h("span", { class: `swatch ${colourOf(name, index).slice(2)}${index >= COLOURS ? " dashed" : ""}` }),
        h("span", { class: "chart-name" }, name), " ", h("span", { class: "chart-value" }), " ", h("span", { class: "chart-span hint" }))));
  }

  private pointed(u: uPlot): void {
    if (this.isSettling) return;
    const index = u.cursor.left !== undefined && u.cursor.left >= 0 ? (u.cursor.idx ?? undefined) : undefined;
    if (index !== this.at) this.tell(index, true);
  }

  private press(event: KeyboardEvent): void {
    const last = this.courses.times.length - 1;
    const from = this.at ?? last;
    const to: Readonly<Record<string, number>> = {
      ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1, PageUp: from - 20, PageDown: from + 20, Home: 0, End: last,
    };
    const wanted = to[event.key];
    if (wanted === undefined || last < 0) return;
    event.preventDefault();
    this.move(Math.min(last, Math.max(0, wanted)), true);
  }

  /** Put the crosshair at a step, or take it away. */
  private move(index: number | undefined, isOwn: boolean): void {
    const u = this.drawn;
    const time = index === undefined ? undefined : this.courses.times[index];
    if (u !== undefined) u.setCursor(time === undefined ? { left: -10, top: -10 } : { left: u.valToPos(time, "x"), top: 0 }, false);
    this.tell(time === undefined ? undefined : index, isOwn);
  }

  private tell(index: number | undefined, isOwn: boolean): void {
    this.at = index;
    const { times, lines } = this.courses;
    const shown = index ?? times.length - 1;
    const time = times[shown];
    const moments = time === undefined ? "" : moment(time, (times.at(-1) ?? 0) - (times[0] ?? 0));
    write(this.when, index === undefined ? "" : moments);
    const texts = lines.map((line) => reading(line, index, this.scale, this.plan.shape));
    texts.forEach(([value, span], place) => {
      const row = this.legend.children[place];
      if (row instanceof HTMLElement) {
        write(row.querySelector<HTMLElement>(".chart-value") ?? row, value);
        write(row.querySelector<HTMLElement>(".chart-span") ?? row, span);
      }
    });
    this.plot.setAttribute("aria-valuenow", String(Math.max(0, shown)));
    this.plot.setAttribute("aria-valuetext", [moments, ...lines.map(({ name }, place) => `${name} ${(texts[place] ?? []).join(" ")}`)].join(", "));
    if (isOwn) this.plan.crosshair?.followers.forEach((follow) => follow(index === undefined ? null : (time ?? null), this));
  }

  /** The step nearest to a time. */
  private nearest(time: number): number | undefined {
    const { times } = this.courses;
    let best: number | undefined;
    times.forEach((each, index) => {
      if (best === undefined || Math.abs(each - time) < Math.abs((times[best] ?? 0) - time)) best = index;
    });
    return best;
  }
}

/** What the legend says of a line: its value and what it lay between; without a crosshair of all of it. */
function reading({ course }: Line, index: number | undefined, scale: Scale, shape: Plan["shape"]): [string, string] {
  if (index !== undefined) {
    const at = toldAt(course.mean, index);
    const [min, max] = [course.min?.[at], course.max?.[at]];
    return [amount(course.mean[at], scale), isRead(min) && isRead(max) ? between(min, max, scale) : ""];
  }
  const sum = sumOf(course);
  if (sum === undefined) return ["–", ""];
  if (shape === "bars") return [amount(sum.mean * sum.count, scale), "in all"];
  return [`mean ${amount(sum.mean, scale)}`, between(sum.min, sum.max, scale)];
}

/** Where a line was told nearest to a step: other lines may have steps of their own in between. */
function toldAt(values: Values, index: number): number {
  for (let away = 0; away < values.length; away++) {
    const found = [index - away, index + away].find((at) => values[at] !== undefined);
    if (found !== undefined) return found;
  }
  return index;
}

function highest(courses: Courses): number[] {
  return stacked(courses).flat().map((value) => value ?? 0);
}

/** Half a step of room beside the first bar and the last. */
function edges(u: uPlot, min: number | null, max: number | null): [number, number] {
  const times = u.data[0];
  const step = (times[1] ?? 0) - (times[0] ?? 0) || 60;
  return [(min ?? 0) - step / 2, (max ?? 0) + step / 2];
}

function colourOf(name: string, index: number): `--${string}` {
  return name === OTHERS ? "--line-others" : `--line-${index % COLOURS}`;
}

/** What a CSS variable says just now. */
function ink(variable: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
