// A job as it stands in the form, and as it is sent. Values only.

import type { Band, DeviceRequest, GpuMode, JobSpec, Partly } from "../../generated/messages.ts";
import { readDuration, readSize, writeDuration, writeSize } from "../units.ts";

/** What the form asks, as it was typed. */
export const FIELDS = [
  ...["command", "cwd", "gpu_mode", "content_type", "gpus", "min_memory", "model", "nodes", "time_limit", "cpus", "memory"],
  ...["name", "band", "env", "is_preemptible", "is_held"],
] as const;
export type Field = "command" | "cwd" | "gpu_mode" | "content_type" | "gpus" | "min_memory" | "model" | "nodes" | "time_limit" | "cpus" | "memory" | "name" | "band" | "env" | "is_preemptible" | "is_held";
export type Draft = Readonly<Record<Exclude<Field, "band" | "gpu_mode">, string>> & { readonly band: Band; readonly gpu_mode: GpuMode };

export const EMPTY: Draft = {
  command: "",
  cwd: "",
  gpu_mode: "GPU_MODE_REQUIRED",
  content_type: "",
  gpus: "1",
  min_memory: "",
  model: "",
  nodes: "",
  time_limit: "",
  cpus: "",
  memory: "",
  name: "",
  band: "BAND_NORMAL",
  env: "",
  is_preemptible: "",
  is_held: "",
};

const SHELL = "/bin/sh";

/** The line of a command: that of a shell, or its words, quoted where a shell would take them otherwise. */
export function lineOf(argv: readonly string[]): string {
  if (argv.length === 3 && argv[0] === SHELL && argv[1] === "-c") return argv[2] ?? "";
  return argv.map(quoted).join(" ");
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** A spec without what was hidden of it, as it is somebody else's. */
export function withoutHidden(spec: JobSpec): JobSpec {
  const seen: JobSpec = { ...spec, hidden_fields: [] };
  for (const name of spec.hidden_fields) {
    if (name === "env" || name === "secrets") Object.assign(seen, { [name]: {} });
    else if (name === "argv" || name === "cpu_argv" || name === "files") Object.assign(seen, { [name]: [] });
    else Object.assign(seen, { [name]: "" });
  }
  return seen;
}

/** The form of a job that was submitted before. */
export function draftOf(spec: JobSpec): Draft {
  const request = spec.devices[0];
  const seconds = Number.parseFloat(spec.time_limit ?? "0");
  const env = Object.entries(spec.env).map(([name, value]) => `${name}=${value}`);
  return {
    command: lineOf(spec.argv),
    cwd: spec.cwd,
    gpu_mode: modeOf(spec),
    content_type: spec.content_type ?? "",
    gpus: String(request?.count ?? 0),
    min_memory: sizeText(request?.min_memory_bytes),
    model: (request?.models ?? []).join(", "),
    nodes: numberText(spec.node_count),
    time_limit: seconds > 0 ? writeDuration(seconds) : "",
    cpus: numberText(spec.cpus),
    memory: sizeText(spec.memory_bytes),
    name: spec.name,
    band: spec.band,
    env: env.join("\n"),
    is_preemptible: spec.is_preemptible ? "yes" : "",
    is_held: "",
  };
}

/** How a job takes GPUs; an old scheduler says nothing of it. */
function modeOf({ gpu_mode: mode }: Partly<JobSpec>): GpuMode {
  return mode === undefined || mode === "GPU_MODE_UNSPECIFIED" ? EMPTY.gpu_mode : mode;
}

function sizeText(bytes: string | undefined): string {
  return Number(bytes ?? 0) > 0 ? writeSize(Number(bytes)) : "";
}

function numberText(value: number): string {
  return value > 0 ? String(value) : "";
}

export type Wrong = Partial<Record<Field, string>>;

/** What a job of another time waited for, and what the scheduler sets: not taken over. */
const NOT_TAKEN = ["after", "begin_time", "trace_context", "kind", "serves", "is_held", "submit_cwd", "hidden_fields"] as const satisfies readonly (keyof JobSpec)[];
/** What says something of a time limit, and nothing without one. */
const OF_LIMIT: readonly string[] = ["limit_signal", "requeue_on_timeout"] satisfies (keyof JobSpec)[];
/** What stands in fields of the form. */
type InTheForm = Exclude<Field, "command" | "gpus" | "min_memory" | "model" | "nodes" | "memory"> | "argv" | "devices" | "node_count" | "memory_bytes";
/** What is kept must have words: a field of a job that has none here does not compile. */
type Kept = Exclude<keyof JobSpec, InTheForm | (typeof NOT_TAKEN)[number]>;

const GRACE_DEFAULT_S = 30;

/** What a form does not show of a job, and what stays as it was: "labels", "array" … */
export function keptOf(spec: JobSpec): string[] {
  const words: Readonly<Record<Kept, string>> = {
    labels: "labels",
    array: "its array",
    nodelist: "the nodes that it may use",
    exclude: "the nodes that it may not use",
    node_labels: "what its nodes must carry",
    no_span: "that it is not spread over nodes",
    pins: "its devices",
    no_gpu_selection: "that its GPUs are taken in plain order",
    process: "niceness and limits of its processes",
    input: "its input",
    grace: "the time that it has to stop",
    retries: "retries",
    blame_limit: "how many lost nodes it outlives",
    queue_timeout: "the longest wait",
    notify: "who is told",
    no_warnings: "that it is not warned",
    sampling_interval: "how often its use is read",
    no_requeue: "that it is not run again",
    requeue_fence: "how long a lost node is waited for",
    limit_signal: "the signal before its time limit",
    requeue_on_timeout: "that its time limit queues it again",
    output_file: "the copy of its output",
    cpu_argv: "what runs without a GPU",
    files: "the files that go with it",
    folder: "the folder that goes with it",
    environment: "the environment that it begins in",
    results: "the files that it is to leave",
    inputs: "the files of other jobs that it is given",
    keep: "the files that it keeps for its next attempt",
    secrets: "the secrets that it gets",
    container: "the container that it runs in",
    group: "its group",
  };
  const told = (Object.keys(words) as Kept[]).filter((name) => !isUsual(name, spec[name])).map((name) => words[name]);
  const request = spec.devices[0];
  if (!isEmpty(request?.share)) told.push("its share of each GPU");
  if (request?.allow_busy) told.push("that busy GPUs will do");
  return told;
}

function isUsual(name: Kept, value: JobSpec[Kept]): boolean {
  return isEmpty(value) || (name === "grace" && typeof value === "string" && Number.parseFloat(value) === GRACE_DEFAULT_S);
}

function isEmpty(value: unknown): boolean {
  if (value === undefined || value === null || value === "" || value === 0 || value === false || value === "INPUT_MODE_UNSPECIFIED") return true;
  return typeof value === "object" && Object.values(value).every(isEmpty);
}

/** The spec of what was typed, or what is wrong with it. `like` is the job that it was filled in from. */
export function specOf(draft: Draft, like: JobSpec | null): { spec: Partly<JobSpec> } | { wrong: Wrong } {
  const wrong: Wrong = {};
  const size = (field: "min_memory" | "memory") => {
    if (draft[field].trim() === "") return "0";
    const read = readSize(draft[field]);
    if ("wrong" in read) wrong[field] = read.wrong;
    return "wrong" in read ? "0" : String(read.value);
  };
  const number = (field: "gpus" | "nodes" | "cpus") => {
    const text = draft[field].trim();
    if (/^\d{0,6}$/.test(text)) return Number(text);
    wrong[field] = "Write a whole number.";
    return 0;
  };
  if (draft.command.trim() === "") wrong.command = "Write the command that is to run.";
  const isAmongFiles = draft.cwd.trim() === "" && !isEmpty(like?.files);
  if (!draft.cwd.trim().startsWith("/") && !isAmongFiles) wrong.cwd = "Write an absolute path, which must exist on the node: /home/ann/work.";
  const count = number("gpus");
  const models = draft.model.split(",").map((each) => each.trim()).filter(Boolean);
  const contentType = draft.content_type.trim();
  if (contentType === "" && draft.gpu_mode === "GPU_MODE_AUTO") wrong.content_type = "Say what it works on, which decides: audio/mpeg.";
  const memory = size("min_memory");
  if (count === 0 && memory !== "0") wrong.min_memory = "This says which GPUs, but none are asked for.";
  if (count === 0 && models.length > 0) wrong.model = "This says which GPUs, but none are asked for.";
  const env = variablesIn(draft.env, wrong);
  const limit = draft.time_limit.trim() === "" ? null : readDuration(draft.time_limit);
  if (limit !== null && "wrong" in limit) wrong.time_limit = limit.wrong;
  const kept = Object.fromEntries(Object.entries(like ?? {}).filter(([key]) => !(NOT_TAKEN as readonly string[]).includes(key) && (limit !== null || !OF_LIMIT.includes(key))));
  const before = like?.devices[0];
  const devices: Partly<DeviceRequest>[] = count === 0 ? [] : [{ ...before, count, min_memory_bytes: memory, models }];
  const spec: Partly<JobSpec> = {
    ...kept,
    // A command that nobody touched is run as it was, without a shell in between.
    argv: like !== null && lineOf(like.argv) === draft.command ? like.argv : [SHELL, "-c", draft.command.trim()],
    name: draft.name.trim(),
    cwd: draft.cwd.trim(),
    gpu_mode: draft.gpu_mode,
    content_type: contentType,
    devices,
    node_count: number("nodes"),
    cpus: number("cpus"),
    memory_bytes: size("memory"),
    band: draft.band,
    env,
    is_preemptible: draft.is_preemptible !== "",
    is_held: draft.is_held !== "",
  };
  delete (spec as { time_limit?: string }).time_limit;
  if (Object.keys(wrong).length > 0) return { wrong };
  return { spec: limit !== null && "value" in limit ? { ...spec, time_limit: `${limit.value}s` } : spec };
}

function variablesIn(text: string, wrong: Wrong): Record<string, string> {
  const env: Record<string, string> = {};
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const at = line.indexOf("=");
    if (at <= 0) wrong.env = `"${line.slice(0, 40)}" is not NAME=VALUE.`;
    else env[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return env;
}

const FIELD_OF: Readonly<Record<string, Field>> = {
  argv: "command",
  cwd: "cwd",
  gpu_mode: "gpu_mode",
  content_type: "content_type",
  devices: "gpus",
  "devices[0].min_memory_bytes": "min_memory",
  "devices[0].models": "model",
  node_count: "nodes",
  time_limit: "time_limit",
  cpus: "cpus",
  memory_bytes: "memory",
  name: "name",
  band: "band",
  env: "env",
  is_preemptible: "is_preemptible",
  is_held: "is_held",
};

/** The form's field for a path of the request, "specs[0].devices[0].count"; null where it has none. */
export function fieldOf(path: string): Field | null {
  let own = path.replace(/^(specs\[0\]\.|spec\.)/, "");
  while (own !== "") {
    const field = FIELD_OF[own];
    if (field !== undefined) return field;
    own = own.slice(0, Math.max(0, own.lastIndexOf("."), own.lastIndexOf("[")));
  }
  return null;
}

/** A random id of a request: the same again is never done twice. */
export function requestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `dash-${[...bytes].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}
