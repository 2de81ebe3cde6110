// What the views say of states, times and sizes.

import type { ArrayCounts, Attempt, Job, JobAccounts, JobSpec, JobState } from "../generated/messages.ts";

/** Between a number and its unit no line ends. */
const NBSP = "\u00a0";
/** What was not told. */
export const ABSENT = "–";

const FINAL: ReadonlySet<string> = new Set([
  "JOB_STATE_SUCCEEDED",
  "JOB_STATE_FAILED",
  "JOB_STATE_CANCELLED",
  "JOB_STATE_TIMED_OUT",
]);

export function hasEnded(state: JobState): boolean {
  return FINAL.has(state);
}

/** Whether it waits or is held: nothing of it runs. */
export function isWaiting(state: JobState): boolean {
  return state === "JOB_STATE_QUEUED" || state === "JOB_STATE_HELD";
}

/** "running", "timed out": an enum's value in words. */
export function word(value: string): string {
  return value.replace(/^(JOB_STATE|NODE_STATE|BAND)_/, "").toLowerCase().replaceAll("_", " ");
}

export type Tone = "good" | "busy" | "bad" | "calm";

export function toneOf(state: string): Tone {
  if (/_(RUNNING|STARTING|READY|SUCCEEDED)$/.test(state)) return "good";
  if (/_(FAILED|TIMED_OUT|LOST)$/.test(state)) return "bad";
  return /_(CANCELLED)$/.test(state) ? "calm" : "busy";
}

/** "between 10 min and 50 min from now, 9 of 10 such jobs"; empty where nobody knows. */
export function likely(job: Pick<Job, "likely_earliest_start_time" | "likely_latest_start_time">, now: number): string {
  const { likely_earliest_start_time: from, likely_latest_start_time: until } = job;
  if (from === undefined || until === undefined) return "";
  const [soonest, last] = [from, until].map((time) => rounded((Date.parse(time) - now) / 1_000)) as [number, number];
  if (last <= 0) return "later than 9 of 10 such jobs";
  const spans = soonest <= 0 || soonest === last ? `within ${lasting(last)}` : `between ${lasting(soonest)} and ${lasting(last)} from now`;
  return `${spans}, 9 of 10 such jobs`;
}

/** Seconds, and whole minutes from ten minutes on: a range is no promise to the second. */
function rounded(seconds: number): number {
  const step = seconds >= 600 ? 60 : 1;
  return Math.ceil(seconds / step) * step;
}

/** How long something has lasted, by its two largest units, rounded down: "45 s", "2 h 5 min", "3 d 4 h". */
export function lasting(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return parts([whole, "s"]);
  if (whole < 3_600) return parts([Math.floor(whole / 60), "min"], [whole % 60, "s"]);
  if (whole < 86_400) return parts([Math.floor(whole / 3_600), "h"], [Math.floor((whole % 3_600) / 60), "min"]);
  return parts([Math.floor(whole / 86_400), "d"], [Math.floor((whole % 86_400) / 3_600), "h"]);
}

function parts(first: [number, string], rest?: [number, string]): string {
  return (rest === undefined || rest[0] === 0 ? [first] : [first, rest]).flat().join(NBSP);
}

/** Seconds in a proto's duration, "1.5s"; 0 for none. */
export function secondsOf(duration: string | undefined): number {
  return duration === undefined ? 0 : Number.parseFloat(duration) || 0;
}

/** Seconds from one time to another; a time is RFC 3339, or milliseconds. */
export function between(start: string | undefined, end: string | number): number {
  if (start === undefined) return 0;
  return ((typeof end === "number" ? end : Date.parse(end)) - Date.parse(start)) / 1_000;
}

/** The time of day, with the date where it is another day's: "14:05", "21 Nov 14:05". */
export function clock(time: number, now: number): string {
  const date = new Date(time);
  const day = date.toDateString() === new Date(now).toDateString();
  const hours = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return day ? hours : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}${NBSP}${hours}`;
}

/** "12.3 GB"; MB are 10^6 bytes. */
export function size(bytes: number): string {
  if (bytes >= 1e12) return `${trimmed(bytes / 1e12)}${NBSP}TB`;
  if (bytes >= 1e9) return `${trimmed(bytes / 1e9)}${NBSP}GB`;
  return `${Math.round(bytes / 1e6)}${NBSP}MB`;
}

function trimmed(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
}

/** "1 GPU", "1,000 GPUs". */
export function counted(number: number, noun: string): string {
  return `${number.toLocaleString("en")}${NBSP}${noun}${number === 1 ? "" : "s"}`;
}

const MAKERS = /\b(NVIDIA|AMD|Tesla|Quadro|GeForce|Instinct|Radeon|Corporation|Graphics|Device|gpufleet|GPU)\b/gi;
/** How it is built in, and how much memory it has: not what people call it. */
const FORM = /^(SXM\d*|PCIe?|HBM\d*e?|NVL\d*|OAM|Generation|Laptop|\d+(GB|MB|G))$/i;

/** What people call a GPU: "H100" for "NVIDIA H100 80GB HBM3", "RTX 4090" for "NVIDIA GeForce RTX 4090". */
export function shortModel(name: string): string {
  const words = name.replace(MAKERS, " ").split(/[\s_]+/).filter(Boolean);
  const kept: string[] = [];
  for (const each of words) {
    const [stem = "", ...ends] = each.split("-");
    if (FORM.test(stem)) continue;
    kept.push(ends.some((end) => FORM.test(end)) ? stem : each);
  }
  return kept.join(" ") || name;
}

/** GPUs that are asked for: "2", "0.5" for a half, "2×0.5", "" for none. */
export function gpusAsked(spec: JobSpec): string {
  const request = spec.devices[0];
  const count = request?.count ?? 0;
  if (count === 0) return "";
  const milli = request?.share?.milli ?? 0;
  if (milli === 0 || milli === 1_000) return String(count);
  return count === 1 ? String(milli / 1_000) : `${count}×${milli / 1_000}`;
}

/** The GPUs that a job had: "2 × H200"; empty where it had none. */
export function gpusHad(job: Job): string {
  const info = job.attempts.at(-1)?.gpu_info;
  const count = info?.count ?? 0;
  if (count === 0) return "";
  const models = [...new Set((info?.devices ?? []).map((each) => shortModel(each.name)))];
  const share = info?.devices[0]?.share?.milli ?? 0;
  const number = share > 0 && share < 1_000 ? String((count * share) / 1_000) : String(count);
  return [number, models.join(", ")].filter(Boolean).join(` ×${NBSP}`);
}

const FOLDED_MIN = 3;

/** Where it runs or ran: "n1:0,1"; of several nodes their names, of many the first and how many more. */
export function placeOf(attempt: Attempt | undefined): string {
  const ranks = attempt?.ranks ?? [];
  const [first] = ranks;
  if (first === undefined) return "";
  if (ranks.length === 1) {
    const { device_indices: indices } = first;
    return indices.length === 0 ? first.node : `${first.node}:${indices.join(",")}`;
  }
  const names = ranks.map((rank) => rank.node);
  return names.length <= FOLDED_MIN ? names.join(", ") : `${names.slice(0, 2).join(", ")} and ${names.length - 2} more`;
}

/** How a job ended, in a few words. */
export function ending(job: Job): string {
  const { exit } = job;
  switch (job.state) {
    case "JOB_STATE_SUCCEEDED":
      return "succeeded";
    case "JOB_STATE_CANCELLED":
      return job.exit_reason === "DEPENDENCY_FAILED" ? "cancelled: what it waited for failed" : "cancelled";
    case "JOB_STATE_TIMED_OUT":
      return "time limit";
    case "JOB_STATE_FAILED":
      if (job.exit_reason === "EXITED" && exit?.code !== undefined) return `exit ${exit.code}`;
      if (job.exit_reason === "EXITED" && exit?.signal !== undefined) return `signal ${exit.signal}`;
      return word(job.exit_reason || "failed");
    default:
      return word(job.state);
  }
}

const COUNTED = ["running", "starting", "stopping", "queued", "held", "succeeded", "failed", "timed_out", "cancelled"] as const;

/** "100 items: 3 running, 97 queued". */
export function itemsInWords(counts: ArrayCounts): string {
  const some = COUNTED.filter((each) => counts[each] > 0).map((each) => `${counts[each].toLocaleString("en")} ${word(each)}`);
  return `${counted(counts.items, "item")}: ${some.join(", ")}`;
}

/** A sentence's beginning with a capital and its end with a full stop. */
export function sentence(text: string): string {
  if (text === "") return "";
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

/** What a node makes for a job before it runs, as a sentence; empty where none does. */
export function setupWords(job: Job): string {
  return job.setting_up ? sentence(`its environment is being made: ${job.setting_up}`) : "";
}

/** Why what a job writes gets no further, as a sentence; empty while it goes on. */
export function blockedWords(job: Job): string {
  return job.output_blocked ? sentence(`its output is blocked: ${job.output_blocked}`) : "";
}

/** As whom the jobs of a node run, and whose they are where not everybody's; empty where its agent does not say. */
export function accountWords(accounts: JobAccounts | undefined): string {
  switch (accounts?.runs_as) {
    case "RUNS_AS_RANGE": return "jobs run as a uid of their user's";
    case "RUNS_AS_ACCOUNTS": return "jobs run as their user's account";
    case "RUNS_AS_OWNER": return `jobs of ${accounts.owner || "nobody"} alone, as ${accounts.account}`;
    case "RUNS_AS_SHARED": return `jobs of all users run as ${accounts.account}`;
    default: return "";
  }
}
