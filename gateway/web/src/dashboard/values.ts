// Values that stand as texts in the JSON of messages: whole numbers of 64 bits, times, spans.

import type { Duration, Int64, Timestamp } from "../generated/messages.ts";

/** A whole number of any size; 0 where there is none. */
export function whole(value: Int64 | number | undefined): number {
  return value === undefined ? 0 : Number(value);
}

/** A time in seconds since 1970; undefined where there is none. */
export function time(value: Timestamp | undefined): number | undefined {
  const milliseconds = value === undefined ? NaN : Date.parse(value);
  return Number.isNaN(milliseconds) ? undefined : milliseconds / 1_000;
}

/** A span in seconds; undefined where there is none. */
export function seconds(value: Duration | undefined): number | undefined {
  return value === undefined ? undefined : Number.parseFloat(value);
}
