// What people read and hear: spans of time, places, and why a session ended.

// Between a number and its unit no line ends.
const NBSP = "\u00a0";

/** "8 s", "1 min 10 s", "2 h 5 min"; what is left of a second counts as a whole one. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  if (whole < 60) return joined([whole, "s"]);
  const minutes = Math.floor(whole / 60);
  if (minutes < 10) return joined([minutes, "min"], [whole % 60, "s"]);
  const all = Math.ceil(whole / 60);
  return all < 60 ? joined([all, "min"]) : joined([Math.floor(all / 60), "h"], [all % 60, "min"]);
}

function joined(first: [number, string], rest?: [number, string]): string {
  const parts = rest === undefined || rest[0] === 0 ? [first] : [first, rest];
  return parts.flat().join(NBSP);
}

/** The same for ears: "1 minute 10 seconds". */
export function spokenSpan(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  const minutes = Math.floor(whole / 60);
  const parts = [minutes && count(minutes, "minute"), (whole % 60 || !minutes) && count(whole % 60, "second")];
  return parts.filter(Boolean).join(" ");
}

/** "0:42", for a clock that runs down. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** "1 person", "3 people". */
export function people(number: number): string {
  return `${number.toLocaleString("en")} ${number === 1 ? "person" : "people"}`;
}

export interface Ending {
  readonly title: string;
  readonly text: string;
  /** Whether joining the same model again makes sense. */
  readonly mayJoinAgain: boolean;
}

const ENDINGS: Readonly<Record<string, readonly [title: string, text: string]>> = {
  TURN_ENDED: ["Your turn is over", "Others were waiting. Stand in line again and you get another turn."],
  IDLE: ["The turn ended by itself", "Nothing was done for a while, so the seat was freed."],
  LEFT: ["You have left", "Come back whenever you like."],
  MOVED: ["You went on in another window", "One person has one place. It is where you opened it last."],
  CLAIM_TIMEOUT: ["Your seat was not taken", "It was offered to you twice while this page could not be reached."],
  DISCONNECTED: ["The connection was away for too long", "A turn is kept for 15 seconds, a place for a minute."],
  WORKER_LOST: ["The worker could not be reached", "That was not your doing. Stand in line again."],
  MODEL_FAILED: ["The model failed", "It raised an error while it worked for you."],
  DRAINING: ["The worker is being taken down", "Somebody who looks after this machine is taking it out of service."],
  CLOSED: ["The session was closed", "Somebody who looks after this model closed it."],
  REFUSED: ["The worker refused the session", "Try again; if it happens once more, choose another model."],
  MODEL_NOT_FOUND: ["This model is not served any more", "Choose another one."],
  FAILED: ["This page cannot go on", ""],
  ADDRESS_FULL: ["Enough people of your address are here", "Try again when one of them has left."],
  PASS_PHRASE_MISSING: ["A pass phrase is needed", "Who serves the model has it."],
  PASS_PHRASE_WRONG: ["This is not the pass phrase", "Who serves the model has it; capital letters count."],
  LOGIN_NEEDED: ["A login is needed", "Log in to the dashboard in this browser, then join."],
  TOO_MANY_TRIES: ["Too many wrong pass phrases", "Wait a minute, and try again."],
  LINE_FULL: ["The line is full", "Every place is taken. Try again in a minute."],
};

/** How the end of a session is told. The gateway's own message is added where it says more. */
export function ending(reason: string): Ending {
  const [title, text] = ENDINGS[reason] ?? ["The session has ended", ""];
  return { title, text, mayJoinAgain: reason !== "MODEL_NOT_FOUND" };
}

/** Reasons whose own message says more than ours: it is shown, too. */
export const TELLING: ReadonlySet<string> = new Set(["MODEL_FAILED", "CLOSED", "REFUSED", "WORKER_LOST"]);

/** Why somebody is not let in: said on the model's card, where it can be mended. */
export const NOT_LET_IN: ReadonlySet<string> = new Set([
  "PASS_PHRASE_MISSING",
  "PASS_PHRASE_WRONG",
  "LOGIN_NEEDED",
  "TOO_MANY_TRIES",
]);

/** What a card says of who may join; empty where everybody may. */
export function accessWords(access: Line["access"] | undefined): string {
  if (access === "pass-phrase") return "Needs a pass phrase";
  return access === "login" ? "Needs a login" : "";
}

/** What the model list says of one line. */
export interface Line {
  readonly name: string;
  readonly waiting: number;
  readonly turns: number;
  readonly seats: number;
  readonly free: number;
  readonly state: "ready" | "loading" | "starting" | "queued" | "failed" | "asleep" | "away";
  readonly progress: number;
  readonly waits_for: string;
  /** What the model says of itself; empty where it says nothing. */
  readonly title: string;
  readonly about: string;
  readonly controls: string;
  readonly keys: readonly string[];
  /** Names the picture that ships with it. */
  readonly picture: string;
  readonly turn_s: number;
  /** Who may join. */
  readonly access: "open" | "pass-phrase" | "login";
}

export interface LineWords {
  readonly tone: "free" | "busy" | "away" | "failed";
  readonly text: string;
  readonly more: string;
  readonly action: string;
}

const NOT_READY: Readonly<Record<string, string>> = {
  starting: "Starting",
  asleep: "Starts when somebody comes",
  away: "Not running now",
};

/** What the job of a worker waits for, by the scheduler's reason. */
const WAITS: Readonly<Record<string, string>> = {
  DEVICES_IN_USE: "Waits for a GPU",
  CPUS_IN_USE: "Waits for a CPU",
  MEMORY_IN_USE: "Waits for memory of a machine",
  DEVICE_MEMORY_IN_USE: "Waits for memory of a GPU",
  DEVICE_BUSY: "Waits for a GPU that somebody else uses",
  DEVICE_UNHEALTHY: "Waits for a GPU that works",
  KEPT_FOR_ANOTHER: "Waits behind another job",
  NODE_NOT_HEARD: "Waits for a machine that can be reached",
  NODE_LOST: "Waits for a machine that can be reached",
  NODE_DRAINING: "Waits for a machine that takes new work",
  NO_NODES: "Waits for a machine",
  NEVER_FITS: "No machine can hold it",
  USER_CAP: "Waits: its owner holds as much as one may",
  GROUP_CAP: "Waits: its group holds as many GPUs as it may",
  GROUP_HOURS: "Waits: its group has used its GPU-hours of the week",
  HELD: "Held",
  BEGIN_TIME: "Starts again in a moment",
};

/** A model's line in words, and what its button does. */
export function lineWords(line: Line): LineWords {
  const action = "Stand in line";
  const waiting = line.waiting > 0 ? `${people(line.waiting)} waiting` : "";
  if (line.state === "failed") {
    return { tone: "failed", text: "Failed", more: "who serves it sees why with gpuctl models", action };
  }
  if (line.state !== "ready") {
    const share = line.progress > 0 ? ` ${Math.round(line.progress * 100)} %` : "";
    return { tone: "away", text: notReady(line) ?? `Loading${share}`, more: waiting, action };
  }
  const seats = `${line.turns} of ${line.seats} ${line.seats === 1 ? "seat" : "seats"} taken`;
  if (line.free > 0 && line.waiting === 0) return { tone: "free", text: "Free now", more: seats, action: "Start" };
  return { tone: "busy", text: waiting || "Nobody waiting", more: seats, action };
}

function notReady(line: Line): string | undefined {
  return line.state === "queued" ? (WAITS[line.waits_for] ?? "Waits for a machine with room") : NOT_READY[line.state];
}

function count(number: number, unit: string): string {
  return `${number} ${unit}${number === 1 ? "" : "s"}`;
}

