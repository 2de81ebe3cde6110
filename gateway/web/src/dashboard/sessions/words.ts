// What is said of models, workers, sessions and visits. Pure.

import type { CountedRequests, ListSessionUsageResponse, Model, Session, SessionUsage } from "../../generated/messages.ts";
import { largest, NONE, type Courses } from "../chart/course.ts";
import { NAMES_MAX, OTHERS } from "../usage/spans.ts";
import { seconds, time, whole } from "../values.ts";

const NBSP = "\u00a0";

/** "has a turn", "waits": a session's state in words. */
export function stateWords({ state, place }: Session): string {
  switch (state) {
    case "SESSION_STATE_WAITING":
      return `waits, place${NBSP}${place}`;
    case "SESSION_STATE_OFFERED":
      return "is offered a seat";
    case "SESSION_STATE_LIMITED":
      return "has a turn that ends";
    case "SESSION_STATE_GRACE":
      return "its turn is over";
    default:
      return "has a turn";
  }
}

/** "24 frames/s": one decimal below ten. */
export function frames(rate: number): string {
  const told = rate >= 10 ? String(Math.round(rate)) : rate.toFixed(1).replace(/\.0$/, "");
  return `${told}${NBSP}frame${told === "1" ? "" : "s"}/s`;
}

/** "48 ms". */
export function latencyWords(duration: string): string {
  return `${Math.round((seconds(duration) ?? 0) * 1_000)}${NBSP}ms`;
}

/** What is said of a model's line, above its workers. */
export function lineWords(model: Model, sessions: readonly Session[], now: number): string {
  const seats = model.workers.reduce((sum, { seats: each }) => sum + each, 0);
  const taken = model.workers.reduce((sum, { taken_seats: each }) => sum + each, 0);
  const parts = [`${taken} of ${seats} seat${seats === 1 ? "" : "s"} taken`, `${model.waiting_count} wait${model.waiting_count === 1 ? "s" : ""}`];
  const waits = sessions.filter(({ state }) => state === "SESSION_STATE_WAITING").map(({ join_time: at }) => now - (time(at) ?? now));
  if (waits.length > 0) parts.push(`longest wait ${minutes(Math.max(...waits))}`);
  const rates = sessions.flatMap(({ frames_per_second: rate }) => (rate === undefined || rate <= 0 ? [] : [rate]));
  if (rates.length > 0) parts.push(frames(rates.reduce((sum, rate) => sum + rate, 0)));
  const delays = sessions.flatMap(({ latency }) => (latency === undefined ? [] : [(seconds(latency) ?? 0) * 1_000]));
  if (delays.length > 0) parts.push(`latency ${Math.round(delays.reduce((sum, each) => sum + each, 0) / delays.length)}${NBSP}ms`);
  return parts.join(" · ");
}

/** What does the same on CPUs, and when requests go there that do not say; empty without one. */
export function cpuWords({ http }: Pick<Model, "http">): string {
  if (http === undefined || http.cpu_model === "") return "";
  switch (http.gpu_mode) {
    case "GPU_MODE_PREFERRED":
      return `falls back to ${http.cpu_model}`;
    case "GPU_MODE_NEVER":
      return `its requests go to ${http.cpu_model}, unless they ask for a GPU`;
    case "GPU_MODE_AUTO":
      return `${http.cpu_model} or itself, as requests work on`;
    default:
      return `falls back to ${http.cpu_model} for requests that allow it`;
  }
}

/** More than this share of a model's requests that fall back is told as trouble, as gpuctl does. */
const FALLBACK_SHARE_MAX = 0.05;

/** Which share of the requests to a model went to its CPU model, where there were any; and whether that is too large. */
export function fallbackWords({ name, http }: Pick<Model, "name" | "http">, counted: readonly CountedRequests[]): { words: string; isMuch: boolean } {
  const own = http === undefined || http.cpu_model === "" ? [] : counted.filter(({ model }) => model === name);
  const fellBack = own.reduce((sum, row) => sum + whole(row.fallback_count), 0);
  const all = own.reduce((sum, row) => sum + whole(row.request_count), fellBack);
  if (all === 0) return { words: "", isMuch: false };
  return { words: `${Math.round((100 * fellBack) / all)}${NBSP}% of the last hour fell back`, isMuch: fellBack / all > FALLBACK_SHARE_MAX };
}

/** How a program stands in the group with which it shares GPUs; empty without one. */
export function groupWords({ exclusive_group: group, in_group: standing }: Pick<Model, "exclusive_group" | "in_group">): string {
  if (group === "") return "";
  const why = standing !== undefined && standing.message !== "" ? `: ${standing.message}` : "";
  switch (standing?.state) {
    case "GROUP_STATE_ASLEEP":
      return `asleep in group ${group}${why}`;
    case "GROUP_STATE_WAITING":
      return `in group ${group}${why === "" ? " it waits" : why}`;
    default:
      return `awake in group ${group}`;
  }
}

/** Who may join a model. */
export function accessWords({ limits }: Pick<Model, "limits">): string {
  switch (limits?.access) {
    case "MODEL_ACCESS_PASS_PHRASE":
      return "for who has its pass phrase";
    case "MODEL_ACCESS_LOGIN":
      return "for who is logged in";
    default:
      return "open to everybody";
  }
}

function minutes(span: number): string {
  return span < 60 ? `${Math.max(0, Math.round(span))}${NBSP}s` : `${Math.round(span / 60)}${NBSP}min`;
}

/** What is counted of people, one of these at a time. */
export const COUNTS = [["people", "People"], ["turns", "Turns"], ["give_ups", "Give-ups"]] as const;
export type Count = (typeof COUNTS)[number][0];

/** How many people, turns or give-ups, bar by bar, of each model. */
export function barsOf(usage: ListSessionUsageResponse, which: Count, now: number): Courses {
  const start = time(usage.start_time), step = seconds(usage.step);
  if (start === undefined || step === undefined || step <= 0) return NONE;
  const bars = Math.max(1, Math.min(1_000, Math.ceil((now - start) / step)));
  const times = Array.from({ length: bars }, (_, bar) => start + (bar + 0.5) * step);
  const lines = new Map<string, number[]>();
  for (const each of usage.steps) {
    const bar = Math.floor(((time(each.start_time) ?? start) - start) / step + 0.5);
    const course = lines.get(each.model) ?? new Array<number>(bars).fill(0);
    lines.set(each.model, course);
    if (bar >= 0 && bar < bars) course[bar] = whole(each[which]);
  }
  const shown = [...lines].filter(([, course]) => course.some((value) => value > 0)).map(([name, mean]) => ({ name, course: { mean } }));
  return shown.length === 0 ? NONE : largest({ times, lines: shown }, NAMES_MAX, OTHERS);
}

/** "left 12, idle 3": why sessions ended, the most frequent first. */
export function endsWords({ ends }: SessionUsage): string {
  const sorted = [...ends].sort((one, other) => whole(other.count) - whole(one.count) || one.reason.localeCompare(other.reason));
  return sorted.map(({ reason, count }) => `${reason.toLowerCase().replaceAll("_", " ")}${NBSP}${whole(count).toLocaleString("en")}`).join(", ");
}
