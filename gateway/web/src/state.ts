// What the page knows of its session, and how that changes: a pure function, so that every course can be tried in a test.
// Times are milliseconds of one clock that never goes back (performance.now).

import type { End, Notice, Place, Turn } from "./wire.ts";

/** How long a place may be kept for a page that is away (docs/rules/sessions.md 1.5); then there is nothing to come back to. */
export const PLACE_KEPT_MS = 60_000;

export type Link = "connecting" | "open" | "lost";

/** An end that was told of: of the turn, or for want of input. */
export interface Limit {
  readonly reason: string;
  readonly endsAt: number;
}

export interface Joining {
  readonly kind: "joining";
}

export interface Waiting {
  readonly kind: "waiting";
  /** null until told, right after a worker was lost. */
  readonly place: number | null;
  readonly lineLength: number;
  readonly estimateAt: number | null;
  readonly boundAt: number | null;
  readonly cause: string;
  /** Why a turn became a place again; empty otherwise. */
  readonly why: string;
}

export interface Playing {
  readonly kind: "turn";
  readonly session: string;
  readonly worker: string;
  readonly limit: Limit | null;
  readonly idle: Limit | null;
  /** A move of the pointer says from this distance on that somebody is there; null as long as nobody has said so. */
  readonly moveMin: number | null;
}

export interface Ended {
  readonly kind: "ended";
  readonly reason: string;
  readonly message: string;
}

export type Phase = Joining | Waiting | Playing | Ended;

export interface Session {
  readonly model: string;
  readonly key: string;
  readonly phase: Phase;
  readonly link: Link;
  readonly lostAt: number | null;
  /** The gateway takes nobody more just now. */
  readonly isFull: boolean;
  readonly isSchedulerAway: boolean;
}

export type Happened =
  | { kind: "opened" }
  | { kind: "lost"; isFull: boolean }
  | { kind: "told"; message: Place | Turn | Notice | End }
  | { kind: "failed"; message: string }
  | { kind: "ticked" };

/** A person wants a place, or comes back with the key of one. */
export function begin(model: string, key: string): Session {
  const phase: Joining = { kind: "joining" };
  return { model, key, phase, link: "connecting", lostAt: null, isFull: false, isSchedulerAway: false };
}

/** Whether there is something to come back to, and the connection must be held. */
export function isLive(session: Session): boolean {
  return session.phase.kind !== "ended";
}

/** The session after something happened. */
export function after(session: Session, happened: Happened, now: number): Session {
  if (!isLive(session)) return session;
  switch (happened.kind) {
    case "opened":
      // Limits are told again to who comes back; without that there are none any more.
      return { ...session, link: "open", lostAt: null, isFull: false, phase: withoutLimits(session.phase) };
    case "lost":
      return { ...session, link: "lost", lostAt: session.lostAt ?? now, isFull: happened.isFull };
    case "told":
      return told(session, happened.message, now);
    case "failed":
      return end(session, "FAILED", happened.message);
    case "ticked":
      return ticked(session, now);
  }
}

function told(session: Session, message: Place | Turn | Notice | End, now: number): Session {
  switch (message.type) {
    case "place":
      return { ...heard(session, message.place_key), phase: standing(session.phase, message, now) };
    case "turn":
      return { ...heard(session, message.place_key), phase: playing(session.phase, message) };
    case "notice":
      return noticed(session, message, now);
    case "end":
      return end(session, message.reason, message.message);
  }
}

function heard(session: Session, key: string | undefined): Session {
  return { ...session, key: key || session.key, isSchedulerAway: false };
}

function standing(phase: Phase, message: Place, now: number): Waiting {
  let why = phase.kind === "waiting" ? phase.why : "";
  if (phase.kind === "turn") why = "The connection was away for too long and your turn ended; you stand in line again.";
  return {
    kind: "waiting",
    place: message.place,
    lineLength: message.line_length,
    estimateAt: at(message.estimated_wait_s, now),
    boundAt: at(message.longest_wait_s, now),
    cause: message.bound_cause ?? "",
    why,
  };
}

function playing(phase: Phase, message: Turn): Playing {
  // A resumed turn may have been told its limit before its stream was open.
  const limit = phase.kind === "turn" ? phase.limit : null;
  const idle = phase.kind === "turn" ? phase.idle : null;
  return { kind: "turn", session: message.session, worker: message.worker ?? "", limit, idle, moveMin: message.move_min ?? null };
}

function noticed(session: Session, notice: Notice, now: number): Session {
  const endsAt = at(notice.remaining_s, now);
  switch (notice.reason) {
    case "SCHEDULER_AWAY":
      return { ...session, isSchedulerAway: true };
    case "WORKER_LOST":
      return { ...session, phase: inFront(notice.message) };
    case "TURN_UNLIMITED":
      return session.phase.kind === "turn" ? { ...session, phase: { ...session.phase, limit: null } } : session;
    case "TURN_LIMITED":
    case "TURN_WARNING":
    case "TURN_GRACE":
      return endsAt === null ? session : { ...session, phase: { ...asTurn(session.phase), limit: { reason: notice.reason, endsAt } } };
    case "IDLE_WARNING":
      return endsAt === null ? session : { ...session, phase: { ...asTurn(session.phase), idle: { reason: notice.reason, endsAt } } };
    case "IDLE_OVER":
      return session.phase.kind === "turn" ? { ...session, phase: { ...session.phase, idle: null } } : session;
    default:
      return session;
  }
}

/** A limit may be told before the stream of a resumed turn is open. */
function asTurn(phase: Phase): Playing {
  return phase.kind === "turn" ? phase : { kind: "turn", session: "", worker: "", limit: null, idle: null, moveMin: null };
}

function inFront(why: string): Waiting {
  const words = `${why.charAt(0).toUpperCase()}${why.slice(1)}.`;
  return { kind: "waiting", place: null, lineLength: 0, estimateAt: null, boundAt: null, cause: "", why: words };
}

function ticked(session: Session, now: number): Session {
  const isGone = session.lostAt !== null && now - session.lostAt > PLACE_KEPT_MS && session.phase.kind !== "joining";
  return isGone ? end(session, "DISCONNECTED", "") : session;
}

function withoutLimits(phase: Phase): Phase {
  return phase.kind === "turn" ? { ...phase, limit: null, idle: null } : phase;
}

function end(session: Session, reason: string, message: string): Session {
  return { ...session, key: "", phase: { kind: "ended", reason, message }, lostAt: null, isSchedulerAway: false };
}

function at(seconds: number | undefined, now: number): number | null {
  return seconds === undefined ? null : now + seconds * 1_000;
}
