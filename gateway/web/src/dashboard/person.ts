// Who is logged in, and what they may do. The scheduler decides; this only keeps the page from offering what it refuses.

import type { Me } from "./api.ts";

let me: Me = { user: "", role: "viewer", version: "" };

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

/** Whether they may change a job of this user. */
export function mayChange(owner: string): boolean {
  return me.role === "admin" || (me.role === "user" && owner === me.user);
}

/** Whether they may change nodes. */
export function isAdmin(): boolean {
  return me.role === "admin";
}
