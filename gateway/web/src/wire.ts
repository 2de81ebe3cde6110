// What the page and the gateway say to each other. docs/web-protocol.md documents it; nothing here knows the DOM.

export const VERSION = 1;

/** Bytes before the picture of a binary message. */
export const HEADER_BYTES = 20;

// What gateway and worker take of inputs: gpufleet/sessions/inputs.py has the same numbers, and a test compares them.

/** Longest text of one `text` message, in characters (UTF-16 units here, which are never fewer). */
export const TEXT_CHARS_MAX = 1_000;

/** Longest name of a key, likewise. */
export const KEY_CHARS_MAX = 32;

/** A mask of all the buttons that are known. */
export const BUTTONS_MAX = 31;

/** The longest turn of a wheel, either way. */
export const WHEEL_PIXELS_MAX = 100_000;

/** The largest picture and density. */
export const PIXELS_MAX = 8_192;
export const DENSITY_MAX = 16;

const TYPES: Readonly<Record<number, string>> = { 1: "image/jpeg", 2: "image/png", 3: "image/webp" };

/** What the browser can show, in the order of its wishes. */
export const ENCODINGS = ["jpeg", "webp", "png"] as const;

export interface Place {
  readonly type: "place";
  readonly place: number;
  readonly line_length: number;
  readonly estimated_wait_s?: number;
  readonly longest_wait_s?: number;
  readonly bound_cause?: string;
  readonly place_key?: string;
}

export interface Turn {
  readonly type: "turn";
  readonly session: string;
  readonly encoding: string;
  readonly is_resumed: boolean;
  readonly worker?: string;
  readonly place_key?: string;
  /** A move of the pointer says from this distance on that somebody is there, as a share of the picture. */
  readonly move_min?: number;
}

export interface Notice {
  readonly type: "notice";
  readonly reason: string;
  readonly message: string;
  readonly remaining_s?: number;
}

export interface End {
  readonly type: "end";
  readonly reason: string;
  readonly message: string;
}

export interface Pong {
  readonly type: "pong";
  readonly number: number;
}

export interface Wrong {
  readonly type: "error";
  readonly message: string;
  readonly next_step: string;
}

export type ServerMessage = Place | Turn | Notice | End | Pong | Wrong;

/** A frame as it came: the picture is still encoded. */
export interface Frame {
  readonly number: number;
  readonly newestInput: number;
  readonly computeMs: number;
  readonly width: number;
  readonly height: number;
  readonly mediaType: string;
  readonly picture: Uint8Array<ArrayBuffer>;
}

export type Input =
  | { type: "pointer"; x: number; y: number; buttons: number; button_change: boolean }
  | { type: "key"; key: string; down: boolean; repeat: boolean }
  | { type: "text"; text: string }
  | { type: "wheel"; dx: number; dy: number; x: number; y: number };

/** The room for the picture: pixels of the screen, and how many of them are one of the page. */
export interface Room {
  readonly width: number;
  readonly height: number;
  readonly density: number;
}

export interface Greeting {
  readonly model: string;
  readonly place_key: string;
  /** A session with another model is not to end for this one. */
  readonly keeps_other: boolean;
  /** A person asked for this just now, and no page by itself. */
  readonly deliberate: boolean;
  /** What the person said to be let in; empty for nothing. */
  readonly pass_phrase: string;
}

export type ClientMessage =
  | ({ type: "hello"; version: number; encodings: readonly string[] } & Greeting & Room)
  | ({ type: "resize" } & Room)
  | { type: "shown"; frame: number }
  | { type: "still_here" }
  | { type: "ping"; number: number }
  | { type: "leave" }
  | (Input & { seq: number });

/** A text of the gateway; null for one that this page does not know, which a newer gateway may send. */
export function readText(text: string): ServerMessage | null {
  let said: unknown;
  try {
    said = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof said !== "object" || said === null) return null;
  const told = said as Record<string, unknown>;
  switch (told["type"]) {
    case "place":
      return isWhole(told["place"]) && isWhole(told["line_length"]) ? (told as unknown as Place) : null;
    case "turn":
      return typeof told["session"] === "string" ? (told as unknown as Turn) : null;
    case "notice":
    case "end":
      return typeof told["reason"] === "string" && typeof told["message"] === "string"
        ? (told as unknown as Notice | End)
        : null;
    case "pong":
      return isWhole(told["number"]) ? (told as unknown as Pong) : null;
    case "error":
      return typeof told["message"] === "string" ? (told as unknown as Wrong) : null;
    default:
      return null;
  }
}

/** A frame; null for one of another version, of an encoding that was not asked for, or cut short. */
export function readFrame(data: ArrayBuffer): Frame | null {
  if (data.byteLength <= HEADER_BYTES) return null;
  const view = new DataView(data);
  const mediaType = TYPES[view.getUint8(1)];
  if (view.getUint8(0) !== VERSION || mediaType === undefined) return null;
  return {
    width: view.getUint16(2),
    height: view.getUint16(4),
    number: view.getUint32(8),
    newestInput: view.getUint32(12),
    computeMs: view.getUint32(16) / 1_000,
    mediaType,
    picture: new Uint8Array(data, HEADER_BYTES),
  };
}

/** The room of so many pixels of the page, as the gateway takes it. */
export function roomOf(width: number, height: number, density: number): Room {
  const whole = (length: number) => Math.min(PIXELS_MAX, Math.max(0, Math.round(length * density)));
  return { width: whole(width), height: whole(height), density: Math.min(DENSITY_MAX, Math.round(density * 1_000) / 1_000) };
}

/** A long text in pieces that each fit one message; no character is cut in two. */
export function pieces(text: string): string[] {
  const all: string[] = [];
  let piece = "";
  for (const character of text) {
    if (piece.length + character.length > TEXT_CHARS_MAX) {
      all.push(piece);
      piece = "";
    }
    piece += character;
  }
  return piece === "" ? all : [...all, piece];
}

function isWhole(value: unknown): value is number {
  return Number.isSafeInteger(value);
}
