// The load of each GPU over the last minutes, as its sparkline shows it. Values only.

import type { NodeDevice } from "../../generated/messages.ts";
import { isOld } from "./fleet.ts";

/** How far a sparkline goes back. */
export const SPARK_S = 120;
/** A line over a longer silence would tell what nobody read. */
const GAP_S = 15;
/** Points of a GPU: one a second, and some that come closer. */
const POINTS_MAX = 150;

interface Point {
  readonly at: number;
  readonly load: number;
}

export class Loads {
  private readonly points = new Map<string, Point[]>();

  /** What was read of a GPU just now; `at` in seconds. */
  take({ device, sample, ...rest }: NodeDevice, at: number): void {
    if (sample?.utilization_percent === undefined || isOld({ device, sample, ...rest })) return;
    this.add(device.uuid, at, sample.utilization_percent);
  }

  /** What was read before anybody looked: it goes before what came since. */
  prepend(uuid: string, before: readonly Point[]): void {
    const known = this.points.get(uuid) ?? [];
    const first = known[0]?.at ?? Infinity;
    this.points.set(uuid, [...before.filter(({ at }) => at < first), ...known].slice(-POINTS_MAX));
  }

  forget(uuid: string): void {
    this.points.delete(uuid);
  }

  /** The line in a box of 100 by 100, the newest moment at its right edge; empty where nothing was read. */
  path(uuid: string, now: number): string {
    let path = "";
    let last = -Infinity;
    for (const { at, load } of this.points.get(uuid) ?? []) {
      if (at < now - SPARK_S) continue;
      const [x, y] = [((at - now) / SPARK_S) * 100 + 100, 100 - load];
      path += `${at - last > GAP_S ? "M" : "L"}${x.toFixed(1)} ${y}`;
      last = at;
    }
    return path;
  }

  private add(uuid: string, at: number, load: number): void {
    const known = this.points.get(uuid);
    if (known === undefined) this.points.set(uuid, [{ at, load }]);
    else if (at > (known.at(-1)?.at ?? 0)) {
      known.push({ at, load });
      if (known.length > POINTS_MAX) known.shift();
    }
  }
}
