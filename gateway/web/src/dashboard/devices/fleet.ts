// The devices of all nodes as they were told last. Values only: what is shown of them is elsewhere.

import type { NodeDevice, WatchDevicesResponse } from "../../generated/messages.ts";
import { secondsOf } from "../words.ts";

export const SHOWN = ["all", "free", "busy", "mine", "unhealthy"] as const;
export type Shown = (typeof SHOWN)[number];

/** More are not kept: a page is no place for them. */
export const DEVICES_MAX = 20_000;

/** Pieces of one update that are held back until the last has come; each has 2,000 devices. */
const PIECES_MAX = 20;

/** A reading that was older when it was told is marked, and is in no sum; the scheduler tells it again when it becomes so. */
const OLD_S = 5;

const byName = new Intl.Collator("en", { numeric: true }).compare;

/** What a message changed: nodes whose rows are others now, and devices that only say something new. */
export interface Changed {
  readonly nodes: ReadonlySet<string>;
  readonly devices: readonly NodeDevice[];
}

const NOTHING_CHANGED: Changed = { nodes: new Set(), devices: [] };

export class Fleet {
  private readonly devices = new Map<string, NodeDevice>();
  private pieces: WatchDevicesResponse[] = [];

  /**
   * Take a message in. One in pieces is taken in with its last, so that nobody sees a part of it; what was left of a
   * stream that broke between two pieces goes with the whole that the next one begins with.
   */
  take(message: WatchDevicesResponse): Changed {
    if (message.is_whole) this.pieces = [];
    this.pieces.push(message);
    if (message.has_more && this.pieces.length < PIECES_MAX) return NOTHING_CHANGED;
    const nodes = new Set<string>();
    const told: NodeDevice[] = [];
    for (const piece of this.pieces) this.takePiece(piece, nodes, told);
    this.pieces = [];
    return { nodes, devices: told };
  }

  private takePiece(message: WatchDevicesResponse, nodes: Set<string>, told: NodeDevice[]): void {
    if (message.is_whole) {
      for (const device of this.devices.values()) nodes.add(device.node);
      this.devices.clear();
    }
    for (const uuid of message.removed_uuids) {
      const gone = this.devices.get(uuid);
      if (gone !== undefined) nodes.add(gone.node);
      this.devices.delete(uuid);
    }
    for (const device of message.devices) {
      const { uuid } = device.device;
      const before = this.devices.get(uuid);
      if (before === undefined && this.devices.size >= DEVICES_MAX) continue;
      if (before === undefined || before.node !== device.node || before.device.index !== device.device.index) {
        nodes.add(device.node);
        if (before !== undefined) nodes.add(before.node);
      }
      this.devices.set(uuid, device);
      told.push(device);
    }
  }

  get count(): number {
    return this.devices.size;
  }

  /** All devices by node, nodes and indices in their order. */
  byNode(): Map<string, NodeDevice[]> {
    const nodes = new Map<string, NodeDevice[]>();
    for (const device of this.devices.values()) {
      const list = nodes.get(device.node);
      if (list === undefined) nodes.set(device.node, [device]);
      else list.push(device);
    }
    for (const list of nodes.values()) list.sort((one, other) => one.device.index - other.device.index);
    return new Map([...nodes].sort(([one], [other]) => byName(one, other)));
  }

  totals(): Totals {
    let free = 0;
    let loads = 0;
    let read = 0;
    let power = 0;
    for (const device of this.devices.values()) {
      if (device.is_free) free += 1;
      if (isOld(device)) continue;
      const { sample } = device;
      if (sample?.utilization_percent !== undefined) {
        loads += sample.utilization_percent;
        read += 1;
      }
      power += Number(sample?.power_mw ?? 0) / 1_000;
    }
    return { count: this.devices.size, free, load: read === 0 ? null : loads / read, watts: power };
  }
}

/** Whether what is told of it was read too long ago to say what it does: its node is not heard any more. */
export function isOld({ sample }: NodeDevice): boolean {
  return sample !== undefined && secondsOf(sample.age) > OLD_S;
}

export interface Totals {
  readonly count: number;
  readonly free: number;
  /** The mean utilisation in percent; null where none was read. */
  readonly load: number | null;
  readonly watts: number;
}

/** Compare nodes' names as people count: n2 before n10. */
export function nodeOrder(one: string, other: string): number {
  return byName(one, other);
}

/** Whether a device passes the filter; `text` is looked for in its node, model, user and job. */
export function passes(device: NodeDevice, text: string, shown: Shown, user: string): boolean {
  if (shown === "free" && !device.is_free) return false;
  if (shown === "busy" && !isUsed(device)) return false;
  if (shown === "mine" && (device.user !== user || !isUsed(device))) return false;
  if (shown === "unhealthy" && device.device.is_healthy) return false;
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return true;
  const jobs = jobsOn(device).map((job) => `#${job}`);
  return [device.node, device.device.name, device.user, ...jobs].some((each) => each.toLowerCase().includes(wanted));
}

/** The jobs that hold it, whole or in part. */
export function jobsOn(device: NodeDevice): string[] {
  return device.job_id !== "0" ? [device.job_id] : device.shares.map((each) => each.job_id);
}

function isUsed(device: NodeDevice): boolean {
  return jobsOn(device).length > 0;
}
