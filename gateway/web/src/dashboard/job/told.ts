// What the scheduler tells of jobs and devices, as proto JSON: of each message the fields that these views show. Whole
// numbers of 64 bits come as text, times as RFC 3339, spans as "3.5s".

import type { ToldCourse } from "../chart/course.ts";
import type * as listed from "../types.ts";

export type Whole = string | number;

export type Exit = listed.ExitStatus;

export interface Rank extends listed.PlacedRank {
  readonly rank: number;
  readonly device_indices: readonly number[];
  readonly cpus: number;
  readonly memory_bytes: Whole;
  readonly start_time?: string;
  readonly exit?: Exit;
  readonly exit_reason: string;
  readonly exit_message: string;
}

export interface PlacedDevice {
  readonly node: string;
  readonly index: number;
  readonly uuid: string;
  readonly name: string;
  readonly memory_free_mb?: Whole;
  readonly utilization_percent?: number;
  readonly availability_score?: number;
  readonly share?: listed.DeviceShare;
}

export interface Attempt extends listed.Attempt {
  readonly ranks: readonly Rank[];
  readonly place_time?: string;
  readonly end_time?: string;
  readonly exit?: Exit;
  readonly exit_reason: string;
  readonly exit_message: string;
  readonly gpu_info?: { readonly count: number; readonly allocation_method: string; readonly devices: readonly PlacedDevice[] };
}

interface Asked extends listed.DeviceRequest {
  readonly count: number;
  readonly min_memory_bytes: string;
  readonly models: readonly string[];
}

export interface Spec extends listed.JobSpec {
  readonly name: string;
  readonly devices: readonly Asked[];
  readonly cpus: number;
  readonly band: string;
  readonly after: readonly { readonly job_id: Whole; readonly condition: string }[];
  readonly array?: { readonly indices: string; readonly max_active_count: number };
  readonly cwd: string;
  readonly serves: string;
  readonly labels: Readonly<Record<string, string>>;
}

export type ArrayState = "queued" | "held" | "starting" | "running" | "stopping" | "succeeded" | "failed" | "cancelled" | "timed_out";

export interface Warning {
  readonly kind: string;
  readonly sentence: string;
  readonly time?: string;
  readonly attempt: number;
}

/** A job as its own page needs it: every field that a list leaves out is there. */
export interface Job extends listed.Job {
  readonly spec: Spec;
  readonly attempts: readonly Attempt[];
  readonly attempt_count: number;
  readonly exit_reason: string;
  readonly exit_message: string;
  readonly queue_position: number;
  readonly bound_sentence: string;
  readonly estimate_sentence: string;
  readonly array_counts?: Readonly<Record<ArrayState | "items", number>>;
  readonly array_id: Whole;
  readonly array_index: number;
  readonly warnings?: readonly Warning[];
}

export interface StoryLine {
  readonly sequence: Whole;
  readonly time: string;
  readonly kind: string;
  readonly sentence: string;
}

export interface Explanation {
  readonly reason?: { readonly reason: string; readonly sentence: string };
  readonly nodes: readonly { readonly node: string; readonly fits: boolean; readonly sentence: string }[];
  readonly ahead_job_ids: readonly Whole[];
  readonly ahead_count: number;
  readonly nearest_change: string;
  readonly bound_sentence: string;
  readonly estimate_sentence: string;
}

export interface Piece {
  readonly attempt: number;
  readonly rank: number;
  readonly stream: string;
  readonly offset: Whole;
  readonly data: string;
  readonly gap?: { readonly from_offset: Whole; readonly to_offset: Whole };
  readonly is_end: boolean;
}

export interface Statistic {
  readonly min: number;
  readonly max: number;
  readonly mean: number;
  readonly count: Whole;
}

/** The counters of a device that have charts, by their names in every message. */
export const COUNTERS = ["utilization_percent", "memory_used_mb", "temperature_c", "power_draw_w"] as const;
export type Counter = (typeof COUNTERS)[number];

export interface DeviceStats extends Readonly<Partial<Record<Counter | "memory_usage_percent", Statistic>>> {
  readonly node: string;
  readonly index: number;
  readonly name: string;
  readonly uuid: string;
  readonly energy_wh?: number;
  readonly series?: { readonly offset_ms: readonly Whole[] } & Readonly<Record<Counter, readonly number[]>>;
}

export interface ProcessStats {
  readonly node: string;
  readonly rank: number;
  readonly cpu_seconds: number;
  readonly cpu_percent?: Statistic;
  readonly memory_mb?: Statistic;
  readonly read_bytes?: Whole;
  readonly write_bytes?: Whole;
}

export interface Stats {
  readonly monitoring_duration?: string;
  readonly sample_count: Whole;
  readonly devices: readonly DeviceStats[];
  readonly energy_wh?: number;
  readonly attempt: number;
  readonly is_final: boolean;
  readonly gpu_seconds: number;
  readonly idle_share?: number;
  readonly processes: readonly ProcessStats[];
}

export interface DeviceHistory extends Readonly<Partial<Record<Counter, ToldCourse>>> {
  readonly node: string;
  readonly index?: number;
  readonly uuid: string;
  readonly name: string;
  readonly memory_bytes: Whole;
}

export interface NodeHistory {
  readonly start_time?: string;
  readonly step?: string;
  readonly devices: readonly DeviceHistory[];
}

interface Summary {
  readonly min: number;
  readonly max: number;
  readonly mean: number;
}

export interface NodeDevice {
  readonly node: string;
  readonly device: { readonly uuid: string; readonly index: number; readonly name: string; readonly memory_bytes: Whole };
  readonly sample?: {
    readonly utilization_percent?: number;
    readonly memory_used_bytes?: Whole;
    readonly temperature_c?: number;
    readonly power_mw?: Whole;
    readonly summary?: Readonly<Partial<Record<"utilization_percent" | "memory_used_bytes" | "temperature_c" | "power_mw", Summary>>>;
  };
}

export interface DevicesTold {
  readonly is_whole: boolean;
  readonly devices: readonly NodeDevice[];
  readonly removed_uuids: readonly string[];
  readonly view_time?: string;
}

export function whole(value: Whole | undefined): number {
  return value === undefined ? 0 : Number(value);
}

/** A time in seconds since 1970; undefined where there is none. */
export function time(told: string | undefined): number | undefined {
  const milliseconds = told === undefined ? NaN : Date.parse(told);
  return Number.isNaN(milliseconds) ? undefined : milliseconds / 1_000;
}

/** A span in seconds; undefined where there is none. */
export function seconds(told: string | undefined): number | undefined {
  return told === undefined ? undefined : Number.parseFloat(told);
}
