// All streams of this page over one WebSocket: of other connections a browser opens six for all tabs of an address.

import type { Problem } from "./problem.ts";

/** How a stream ended: "lost" with its connection, or as the gateway said. */
export type Ended = { readonly why: "lost" } | { readonly why: "end" } | { readonly why: "error"; readonly problem: Problem };

export interface Follower {
  onMessage(message: unknown): void;
  onEnd(ended: Ended): void;
}

interface ServerMessage {
  readonly stream?: number;
  readonly message?: unknown;
  readonly error?: Problem;
  readonly end?: object;
}

/** The gateway says something every 15 s. */
const SILENCE_MS_MAX = 40_000;

/** A connection without streams is kept for so long. */
const IDLE_MS = 5_000;

class Streams {
  private readonly followers = new Map<number, { readonly follower: Follower; readonly said: string }>();
  private socket: WebSocket | null = null;
  private number = 0;
  private idle: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;

  /** Open a stream; what it answers ends it without another word. */
  follow(method: string, request: object, follower: Follower): () => void {
    const stream = ++this.number;
    const said = JSON.stringify({ stream, method, request });
    this.followers.set(stream, { follower, said });
    if (this.socket === null) this.connect();
    else if (this.socket.readyState === WebSocket.OPEN) this.socket.send(said);
    return () => this.leave(stream);
  }

  /** Somebody else may be logged in now: what is open is opened anew. */
  cut(): void {
    if (this.socket !== null) this.lose({ why: "lost" });
  }

  private leave(stream: number): void {
    if (!this.followers.delete(stream)) return;
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ stream, end: true }));
    // A view that takes the place of another one soon opens its own.
    clearTimeout(this.idle);
    this.idle = setTimeout(() => {
      if (this.followers.size === 0) this.drop();
    }, IDLE_MS);
  }

  private connect(): void {
    const address = new URL("api/v1/streams", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    this.socket = socket;
    this.heard();
    socket.onopen = () => {
      for (const { said } of this.followers.values()) socket.send(said);
    };
    socket.onmessage = (event: MessageEvent<string>) => this.take(JSON.parse(event.data) as ServerMessage);
    socket.onclose = () => this.lose({ why: "lost" });
  }

  private take(message: ServerMessage): void {
    this.heard();
    if (message.stream === undefined) {
      if (message.error !== undefined) this.lose({ why: "error", problem: message.error });
      return;
    }
    const found = this.followers.get(message.stream);
    if (found === undefined) return;
    if (message.error === undefined && message.end === undefined) {
      found.follower.onMessage(message.message);
      return;
    }
    this.followers.delete(message.stream);
    found.follower.onEnd(message.error === undefined ? { why: "end" } : { why: "error", problem: message.error });
  }

  private heard(): void {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lose({ why: "lost" }), SILENCE_MS_MAX);
  }

  /** The connection is of no use any more: each stream has ended. */
  private lose(ended: Ended): void {
    this.drop();
    const followers = [...this.followers.values()];
    this.followers.clear();
    for (const { follower } of followers) follower.onEnd(ended);
  }

  private drop(): void {
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = null;
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }
}

export const streams = new Streams();
