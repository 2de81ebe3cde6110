// The scheduler's answers, as far as the views read them: the protos' own names, 64-bit numbers as text.

export type JobState =
  | "JOB_STATE_QUEUED"
  | "JOB_STATE_HELD"
  | "JOB_STATE_STARTING"
  | "JOB_STATE_RUNNING"
  | "JOB_STATE_STOPPING"
  | "JOB_STATE_SUCCEEDED"
  | "JOB_STATE_FAILED"
  | "JOB_STATE_CANCELLED"
  | "JOB_STATE_TIMED_OUT";

export interface DeviceShare {
  readonly milli?: number;
}

export interface DeviceRequest {
  readonly count?: number;
  readonly min_memory_bytes?: string;
  readonly models?: readonly string[];
  readonly share?: DeviceShare;
}

export interface JobSpec {
  readonly argv: readonly string[];
  readonly name?: string;
  readonly devices?: readonly DeviceRequest[];
  readonly node_count?: number;
  readonly cpus?: number;
  readonly memory_bytes?: string;
  readonly band?: string;
  readonly time_limit?: string;
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly labels?: Readonly<Record<string, string>>;
  readonly kind?: string;
  readonly is_preemptible?: boolean;
  readonly is_held?: boolean;
  readonly serves?: string;
  readonly [other: string]: unknown;
}

export interface ExitStatus {
  readonly code?: number;
  readonly signal?: number;
}

export interface PlacedRank {
  readonly node: string;
  readonly device_indices?: readonly number[];
}

export interface Attempt {
  readonly number: number;
  readonly ranks?: readonly PlacedRank[];
  readonly start_time?: string;
  readonly is_unreachable?: boolean;
  readonly gpu_info?: { readonly count?: number; readonly devices?: readonly { readonly name: string; readonly share?: DeviceShare }[] };
}

export interface ArrayCounts {
  readonly items?: number;
  readonly queued?: number;
  readonly held?: number;
  readonly starting?: number;
  readonly running?: number;
  readonly stopping?: number;
  readonly succeeded?: number;
  readonly failed?: number;
  readonly cancelled?: number;
  readonly timed_out?: number;
}

export interface Job {
  readonly id: string;
  readonly user: string;
  readonly spec: JobSpec;
  readonly state: JobState;
  readonly submit_time?: string;
  readonly start_time?: string;
  readonly end_time?: string;
  readonly attempts?: readonly Attempt[];
  readonly exit?: ExitStatus;
  readonly exit_reason?: string;
  readonly exit_message?: string;
  readonly wait_reason?: { readonly reason: string; readonly sentence: string };
  readonly queue_position?: number;
  readonly estimated_start_time?: string;
  readonly latest_start_time?: string;
  readonly bound_sentence?: string;
  readonly estimate_sentence?: string;
  readonly array_counts?: ArrayCounts;
  readonly warnings?: readonly { readonly kind: string; readonly sentence: string }[];
  readonly has_stats?: boolean;
}

export interface QueueCounts {
  readonly queued?: string;
  readonly held?: string;
  readonly starting?: string;
  readonly running?: string;
  readonly stopping?: string;
}

export interface QueueResponse {
  readonly jobs: readonly Job[];
  readonly next_page_token: string;
  readonly counts: QueueCounts;
  readonly view_time?: string;
}

export interface WatchResponse {
  readonly event: string;
  readonly job?: Job;
  readonly node?: Node;
  readonly view_time?: string;
}

export interface JobChange {
  readonly job_id: string;
  readonly changed?: boolean;
  readonly state: JobState;
  readonly message: string;
}

export interface Device {
  readonly uuid: string;
  readonly index: number;
  readonly name: string;
  readonly memory_bytes: string;
  readonly is_virtual?: boolean;
  readonly is_healthy: boolean;
  readonly unhealthy_reason?: string;
}

export interface DeviceSample {
  readonly age?: string;
  readonly utilization_percent?: number;
  readonly memory_used_bytes?: string;
  readonly temperature_c?: number;
  readonly power_mw?: string;
  readonly power_limit_mw?: string;
  readonly processes?: readonly { readonly is_foreign?: boolean; readonly job_id?: string }[];
  readonly throttle_reasons?: readonly string[];
}

export interface NodeDevice {
  readonly device: Device;
  readonly sample?: DeviceSample;
  readonly job_id?: string;
  readonly availability_score?: number;
  readonly is_free?: boolean;
  readonly shares?: readonly { readonly job_id: string; readonly share?: DeviceShare }[];
  readonly node: string;
  readonly user?: string;
}

export interface DevicesResponse {
  readonly is_whole?: boolean;
  readonly devices?: readonly NodeDevice[];
  readonly removed_uuids?: readonly string[];
  readonly view_time?: string;
  readonly has_more?: boolean;
}

export interface Node {
  readonly name: string;
  readonly state: string;
  readonly info?: {
    readonly hostname?: string;
    readonly cpus?: number;
    readonly memory_bytes?: string;
    readonly devices_note?: string;
    readonly devices_fix?: string;
  };
  readonly last_heard_time?: string;
  readonly is_draining?: boolean;
  readonly drain_reason?: string;
  readonly cpus_used?: number;
  readonly memory_used_bytes?: string;
  readonly devices?: readonly unknown[];
}
