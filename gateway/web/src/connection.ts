// The way to the gateway: one WebSocket at a time, opened again with pauses that grow, until it is let go.

import { ENCODINGS, VERSION, readFrame, readText } from "./wire.ts";
import type { Frame, Greeting, Input, Room, ClientMessage, ServerMessage } from "./wire.ts";

const PING_MS = 5_000;

/** A connection on which nothing was heard for so long since a ping is lost. */
const SILENT_MS = 8_000;

const OPENING_MS_MAX = 10_000;

const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 5_000;

/** Close codes that say that it would be the same the next time. */
const REFUSALS: Readonly<Record<number, string>> = {
  1009: "This page sent a message that is too long. Load it again.",
  4400: "The gateway did not understand this page. Load it again.",
  4429: "This page sent too many messages. Load it again.",
  4430: "Too many sessions come from your address. Close some, or ask who looks after this gateway.",
};

const LEAVING = 1012;
const FULL = 4503;

/** A gateway that leaves sends all its people away at once: they come back spread over so long. */
const SPREAD_MS = 2_000;

/** Inputs whose sending times are remembered, to tell the latency. */
const SENT_MAX = 512;

export interface Listener {
  /** What the next hello says of the session, whether one with another model is kept, and of the room for its picture. */
  greeting(): Greeting & Room;
  opened(): void;
  /** `isFull`: the gateway takes nobody more just now. */
  lost(isFull: boolean): void;
  /** The gateway will not have this page: trying again would not help. */
  refused(words: string): void;
  received(message: ServerMessage): void;
  frame(frame: Frame): void;
}

export class Connection {
  private readonly url: string;
  private readonly listener: Listener;
  private socket: WebSocket | null = null;
  private sequence = 0;
  private readonly sentAt = new Map<number, number>();
  private pause = RETRY_MS_MIN;
  private tryAt: number | null = null;
  private openedAt = 0;
  private pingedAt = 0;
  private heardAt = 0;
  private isHeld = false;

  constructor(url: string, listener: Listener) {
    this.url = url;
    this.listener = listener;
  }

  /** Connect, and hold the connection until `release`. */
  hold(): void {
    this.isHeld = true;
    this.pause = RETRY_MS_MIN;
    this.open();
  }

  /** Let go: nothing is said or heard any more. */
  release(): void {
    this.isHeld = false;
    this.tryAt = null;
    this.drop();
  }

  get isOpen(): boolean {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Something that is no input. */
  say(said: ClientMessage): void {
    if (this.isOpen) this.socket?.send(JSON.stringify(said));
  }

  /** An input; it gets the next number. What is done while the connection is lost is lost, too. */
  input(input: Input): void {
    if (!this.isOpen) return;
    const seq = ++this.sequence;
    this.sentAt.set(seq, performance.now());
    if (this.sentAt.size > SENT_MAX) this.sentAt.delete(this.sentAt.keys().next().value ?? seq);
    this.say({ ...input, seq });
  }

  /** When an input was sent; null for one that was asked for already or is not known. */
  takeSentAt(seq: number): number | null {
    const sent = this.sentAt.get(seq) ?? null;
    for (const older of this.sentAt.keys()) {
      if (older > seq) break;
      this.sentAt.delete(older);
    }
    return sent;
  }

  /** Called several times a second. */
  tick(): void {
    const now = performance.now();
    if (this.tryAt !== null && now >= this.tryAt) this.open();
    if (this.socket?.readyState === WebSocket.CONNECTING && now - this.openedAt > OPENING_MS_MAX) this.fail();
    if (!this.isOpen) return;
    if (this.heardAt < this.pingedAt && now - this.pingedAt > SILENT_MS) this.fail();
    else if (now - this.pingedAt > PING_MS && this.heardAt >= this.pingedAt) this.ping(now);
  }

  /** Try at once: the network is back, or somebody looks at the page again. */
  hurry(): void {
    if (this.tryAt !== null) this.open();
  }

  private ping(now: number): void {
    this.pingedAt = now;
    this.say({ type: "ping", number: Math.round(now) });
  }

  private open(): void {
    this.tryAt = null;
    this.drop();
    const socket = new WebSocket(this.url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.openedAt = performance.now();
    socket.onopen = () => {
      this.sequence = 0;
      this.sentAt.clear();
      this.say({ type: "hello", version: VERSION, encodings: ENCODINGS, ...this.listener.greeting() });
      this.heardAt = performance.now();
      this.ping(this.heardAt);
      this.listener.opened();
    };
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => this.take(event.data);
    socket.onclose = (event) => {
      const refusal = REFUSALS[event.code];
      if (refusal === undefined) this.fail(event.code);
      else this.listener.refused(refusal);
    };
  }

  private take(data: string | ArrayBuffer): void {
    this.heardAt = performance.now();
    // What was heard is a session, not only an open door: the next try may be quick again.
    this.pause = RETRY_MS_MIN;
    if (typeof data === "string") {
      const message = readText(data);
      if (message !== null) this.listener.received(message);
    } else {
      const frame = readFrame(data);
      if (frame !== null) this.listener.frame(frame);
    }
  }

  private fail(code = 0): void {
    this.drop();
    if (!this.isHeld) return;
    const pause = code === LEAVING ? SPREAD_MS * Math.random() : this.pause * (0.5 + Math.random() / 2);
    this.tryAt = performance.now() + pause;
    this.pause = Math.min(this.pause * 2, RETRY_MS_MAX);
    this.listener.lost(code === FULL);
  }

  private drop(): void {
    const socket = this.socket;
    if (socket === null) return;
    this.socket = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }
}
