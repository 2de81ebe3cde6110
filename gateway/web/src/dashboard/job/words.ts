// A job in words: states, ends, spans, sizes. Pure.

import type { ArrayCounts, Attempt, ExitStatus, Int64, Job, JobSpec, PlacedRank } from "../../generated/messages.ts";
import { seconds, whole } from "../values.ts";

const NBSP = "\u00a0";
const SIGNALS: Readonly<Record<number, string>> = {
  1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 15: "SIGTERM",
};

/** "exit code 3", "killed by signal 9 (SIGKILL)"; empty where nobody knows. */
export function exitWords(exit: ExitStatus | undefined): string {
  if (exit?.signal !== undefined) {
    const name = SIGNALS[exit.signal];
    return `ended by signal${NBSP}${exit.signal}${name ? ` (${name})` : ""}`;
  }
  return exit?.code === undefined ? "" : `exit code${NBSP}${exit.code}`;
}

/** What the time limit does beside ending an attempt: "SIGUSR1 5 min before, then queued again"; empty for nothing. */
export function atLimitWords(spec: Pick<JobSpec, "limit_signal" | "requeue_on_timeout">): string {
  const asked = spec.limit_signal;
  const name = asked === undefined ? "" : SIGNALS[asked.signal] ?? `signal${NBSP}${asked.signal}`;
  const whom = asked?.leader_only === true ? " to the process that was started" : "";
  const told = asked === undefined ? "" : `${name}${whom} ${lasted(seconds(asked.before) ?? 60)} before`;
  return [told, spec.requeue_on_timeout ? "queued again" : ""].filter(Boolean).join(", then ");
}

/** How its processes run: "niceness 5; limits: NOFILE 4096, up to 8192; CORE none"; empty for as the agent's own. */
export function processWords(settings: JobSpec["process"]): string {
  const value = (each: Int64): string => (whole(each) === -1 ? "none" : String(each));
  const limits = (settings?.rlimits ?? []).map(({ name, soft, hard }) => {
    const more = hard === undefined || hard === soft ? "" : whole(hard) === -1 ? ", which it may lift" : `, up to ${value(hard)}`;
    return `${name}${NBSP}${value(soft)}${more}`;
  });
  const nice = settings?.nice ? [`niceness${NBSP}${settings.nice}`] : [];
  return [...nice, ...(limits.length === 0 ? [] : [`limits: ${limits.join("; ")}`])].join("; ");
}

/** How a job takes its GPUs: "preferred; it does without GPUs, as …"; empty where it simply requires them. */
export function gpuChoiceWords(choice: Job["gpu_choice"]): string {
  if (choice === undefined) return "";
  const mode = choice.mode.replace("GPU_MODE_", "").toLowerCase();
  return choice.sentence === "" ? mode : `${mode}: ${choice.sentence}`;
}

/** How a job, attempt or rank ended: the sentence that was told, and the code where it does not tell it. */
export function endWords(ended: Pick<Job | Attempt | PlacedRank, "exit" | "exit_message" | "exit_reason">): string {
  const code = exitWords(ended.exit);
  const sentence = ended.exit_message || (ended.exit_reason === "EXITED" ? "" : ended.exit_reason.toLowerCase().replaceAll("_", " "));
  if (sentence === "") return code;
  const number = ended.exit?.code ?? ended.exit?.signal;
  return code === "" || number !== undefined && new RegExp(`\\b${number}\\b`).test(sentence) ? sentence : `${sentence} (${code})`;
}

/** "0.4 s", "42 s", "3 min 10 s", "2 h 5 min", "3 d 4 h". */
export function lasted(seconds: number): string {
  if (seconds < 0) return lasted(0);
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))}${NBSP}s`;
  const all = Math.round(seconds);
  const [unit, next] = all < 60 ? [1, 1] : all < 3_600 ? [60, 1] : all < 86_400 ? [3_600, 60] : [86_400, 3_600];
  const names: Readonly<Record<number, string>> = { 1: "s", 60: "min", 3_600: "h", 86_400: "d" };
  const rest = Math.floor((all % unit) / next);
  const first = `${Math.floor(all / unit).toLocaleString("en")}${NBSP}${names[unit]}`;
  return unit === 1 || rest === 0 ? first : `${first}${NBSP}${rest}${NBSP}${names[next]}`;
}

/** "512 B", "1.2 MB", "80 GB": MB are 10^6 bytes. */
export function size(told: Int64 | number | undefined): string {
  let value = whole(told);
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1_000;
    unit += 1;
  }
  return `${value < 99.95 && unit > 0 ? Number(value.toFixed(1)) : Math.round(value)}${NBSP}${units[unit]}`;
}

/** A time of day, with its day where that is not today. */
export function clockWords(time: number, now: number): string {
  const date = new Date(time * 1_000);
  const clock = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === new Date(now * 1_000).toDateString()) return clock;
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${clock}`;
}

/** "n1: GPU 0 and 1", rank by rank; "n1, no GPU". */
export function placeWords(ranks: readonly PlacedRank[]): string {
  return ranks.map(({ node, device_indices: indices }) => (indices.length === 0 ? `${node}, no GPU` : `${node}: GPU${NBSP}${listed(indices)}`)).join("; ");
}

/** "0", "0 and 1", "0–3 and 6". */
export function listed(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last !== undefined && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  const parts = runs.flatMap(([first, last]) => (last - first < 2 ? [...new Set([first, last])].map(String) : [`${first}–${last}`]));
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1) ?? ""}`;
}

/** What was asked for: "2 GPUs with 10 GB free each", "no GPU". */
export function requestWords(spec: JobSpec): string {
  const words = spec.devices.map(({ count, min_memory_bytes: memory, models, share }) => {
    if (count === 0) return "no GPU";
    const part = share?.milli ? `${share.milli / 10}${NBSP}% of ` : "";
    const model = models.length > 0 ? `${models.join(" or ")} ` : "";
    const free = whole(memory) > 0 ? ` with ${size(memory)} free${count > 1 ? " each" : ""}` : "";
    return `${part}${count}${NBSP}${model}GPU${count === 1 ? "" : "s"}${free}`;
  });
  return words.length === 0 ? "no GPU" : words.join(", or ");
}

/** A command as a shell would take it. */
export function commandWords(argv: readonly string[]): string {
  return argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

/** The states in which items of an array are counted. */
export const ARRAY_STATES: readonly Exclude<keyof ArrayCounts, "items">[] = [
  "running", "starting", "stopping", "queued", "held", "succeeded", "failed", "timed_out", "cancelled",
];

/** How a device is called: by its index, and with several nodes by node and index. */
export function deviceName(node: string, index: number, hasSeveralNodes: boolean): string {
  return hasSeveralNodes ? `${node}:${index}` : `GPU${NBSP}${index}`;
}

const RESULTS = {
  RESULTS_STATE_UNSPECIFIED: "",
  RESULTS_STATE_COMING: "still coming",
  RESULTS_STATE_STORED: "stored",
  RESULTS_STATE_INCOMPLETE: "stored in part",
  RESULTS_STATE_LOST: "lost",
  RESULTS_STATE_DROPPED: "dropped",
  RESULTS_STATE_UNKNOWN: "cannot be told now",
} as const;

/** What became of what it was to leave; empty where there is nothing to say. */
export function resultsWords({ results }: Job): string {
  const word = results === undefined ? "" : RESULTS[results.state];
  return word !== "" && results?.message ? `${word}: ${results.message}` : word;
}
