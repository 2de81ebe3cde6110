// Usage over time: #/usage of everybody, and #/usage/NODE of one node's devices. Each part has a file in usage/.

import { h, write } from "../dom.ts";
import { call } from "./api.ts";
import { Chart } from "./chart.ts";
import "./job/job.css";
import { choice, problemWords } from "./job/parts.ts";
import { pause } from "./job/pace.ts";
import { addressOf } from "./router.ts";
import { NodeCharts } from "./usage/node.ts";
import { QueueCharts } from "./usage/queue.ts";
import { barsOf, GROUPS, SPANS, startOf, stepsOf, type Group, type Span } from "./usage/spans.ts";
import { UsageTable } from "./usage/table.ts";

/** The span that was chosen last, in this tab. */
const REMEMBERED = "gpufleet.usage-span";
const FIRST = "day";

/** A view that reads a span, again and again, until another one is chosen. */
interface Reads {
  read(span: Span, until: AbortSignal): Promise<void>;
}

export function show(place: HTMLElement, parameter: string, until: AbortSignal): void {
  if (parameter === "") showUsage(place, until);
  else showNode(place, parameter, until);
}

function showUsage(place: HTMLElement, until: AbortSignal): void {
  const bars = new Chart({ key: "usage", title: "Used", unit: "GPU-hours", axis: "zero", shape: "bars", nothing: "Nothing was used in this span." }, until);
  const table = new UsageTable();
  const queue = new QueueCharts(until);
  const nodes = new NodeCharts("", until);
  const note = h("p", { class: "hint", role: "status" });
  let group: Group = "USAGE_GROUP_USER";
  let span: Span | undefined, told: AbortSignal = until;
  const read = async (): Promise<void> => {
    if (span === undefined) return;
    const [wanted, of, signal] = [group, span, told];
    const now = Date.now() / 1_000, start = startFor(of, now);
    try {
      const usage = await call("ListUsage", { start_time: new Date(start * 1_000).toISOString(), group: wanted, steps_max: stepsOf(of, start, now) });
      if (signal.aborted || wanted !== group) return;
      write(note, "");
      bars.show(barsOf(usage, of, wanted), 0, `per ${of.barName}`);
      table.fill(usage, wanted, start);
    } catch (problem) {
      if (!signal.aborted) write(note, problemWords(problem));
    }
  };
  const groups = choice("By", (value) => {
    group = value as Group;
    void read();
  });
  groups.offer(GROUPS.map(([value, name]) => [value, name]));
  const spans = spanChoice(until, {
    read: async (wanted, signal) => {
      [span, told] = [wanted, signal];
      const start = startFor(wanted, Date.now() / 1_000);
      await Promise.all([read(), queue.read(start, signal), nodes.read(start, wanted.length, signal)]);
    },
  });
  place.append(h("h1", { tabindex: "-1" }, "Usage"), h("div", { class: "controls" }, spans, groups.element), note, bars.element, table.element, queue.element, nodes.element);
}

function showNode(place: HTMLElement, node: string, until: AbortSignal): void {
  const charts = new NodeCharts(node, until);
  const spans = spanChoice(until, {
    // To the second: a node's own page shows what is read as it comes.
    read: (span, signal) => charts.read(Date.now() / 1_000 - span.length, span.length, signal),
  });
  place.append(h("h1", { tabindex: "-1" }, `Node ${node}`), h("p", { class: "hint" }, h("a", { href: addressOf("devices") }, "All GPUs"), " · ", h("a", { href: addressOf("usage") }, "Usage of all nodes")),
    h("div", { class: "controls" }, spans), charts.element);
}

/** The choice of a span. It reads the one that is chosen, and again as often as that one changes. */
function spanChoice(until: AbortSignal, view: Reads): HTMLElement {
  let cut = new AbortController();
  until.addEventListener("abort", () => cut.abort());
  const follow = async (span: Span): Promise<void> => {
    cut.abort();
    cut = new AbortController();
    const { signal } = cut;
    while (!signal.aborted && !until.aborted) {
      if (!document.hidden) await view.read(span, signal);
      await pause(span.again * 1_000, signal);
    }
  };
  const { element, select, offer } = choice("Span", (key) => {
    sessionStorage.setItem(REMEMBERED, key);
    void follow(spanOf(key));
  });
  offer(SPANS.map(({ key, name }) => [key, name]));
  const first = spanOf(sessionStorage.getItem(REMEMBERED) ?? FIRST);
  select.value = first.key;
  queueMicrotask(() => void follow(first));
  return element;
}

function spanOf(key: string): Span {
  const found = SPANS.find((span) => span.key === key) ?? SPANS[0];
  if (found === undefined) throw new Error("there are no spans");
  return found;
}

function startFor(span: Span, now: number): number {
  return startOf(span, now, new Date(now * 1_000).getTimezoneOffset() * 60);
}
