// Who is logged in, and what they may do. The scheduler decides; this only keeps the page from offering what it refuses.

import type { Band } from "../generated/messages.ts";
import type { Me } from "./api.ts";

/** All bands, lowest first. */
export const BANDS: readonly Band[] = ["BAND_LOW", "BAND_NORMAL", "BAND_HIGH", "BAND_URGENT"];

let me: Me = { user: "", role: "viewer", version: "", bands: [] };

export function become(person: Me): void {
  me = person;
}

export function user(): string {
  return me.user;
}

/** Whether they may submit. */
export function maySubmit(): boolean {
  return me.role !== "viewer";
}

/** The bands that they may ask for, lowest first. */
export function bands(): readonly Band[] {
  return me.bands;
}

/** This band where they have it; else the highest one below it that they have, or their lowest one. */
export function bandWithin(band: Band): Band {
  const below = BANDS.slice(0, BANDS.indexOf(band) + 1);
  return below.reverse().find((each) => me.bands.includes(each)) ?? me.bands[0] ?? band;
}

/** Whether they may change a job of this user. */
export function mayChange(owner: string): boolean {
  return me.role === "admin" || (me.role === "user" && owner === me.user);
}

/** Whether they may change nodes. */
export function isAdmin(): boolean {
  return me.role === "admin";
}
