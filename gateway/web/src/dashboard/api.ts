// What the dashboard asks the gateway for: calls, and streams that come back by themselves.

import type { Band, Calls, Partly, Streams } from "../generated/messages.ts";
import type { Problem } from "./problem.ts";
import { streams } from "./socket.ts";

export type { Problem };

/** A call that was refused, or had no answer. `status` is 0 where nothing answered. */
export class CallError extends Error {
  constructor(
    readonly problem: Problem,
    readonly status: number,
  ) {
    super(problem.message);
  }

  /** Whether the same may pass later without anybody's doing. */
  get mayPass(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

export interface Me {
  readonly user: string;
  readonly role: "admin" | "user" | "viewer";
  readonly version: string;
  /** Bands that they may ask for, lowest first. */
  readonly bands: readonly Band[];
}

/** "live": what was told is as new as it can be. "stale": the stream is lost and tried again. "ended": no more comes. */
export type Liveness = "live" | "stale" | "ended";

export interface StreamListener<T> {
  onMessage(message: T): void;
  /** Called with every change, and with why where there is something to say. */
  onState?(state: Liveness, problem: Problem | null): void;
}

const ANSWER_MS_MAX = 30_000;
export const RETRY_MS_MIN = 500;
export const RETRY_MS_MAX = 10_000;
/** A tab that nobody sees gives its streams back after this. */
const HIDDEN_MS = 20_000;

/** Streams on which the scheduler says something every 10 s, whether or not there is news. */
const TOLD_REGULARLY = new Set(["Watch", "WatchDevices"]);
/** One of them that is quiet for so long is lost, though its connection stands: nobody may be at its other end. */
const QUIET_MS_MAX = 25_000;

const SILENT: Problem = {
  reason: "SCHEDULER_UNREACHABLE",
  message: "The scheduler does not answer just now.",
  next_step: "It is tried again by itself.",
  field: "",
};

export const AWAY: Problem = {
  reason: "GATEWAY_UNREACHABLE",
  message: "The gateway cannot be reached just now.",
  next_step: "It is tried again by itself.",
  field: "",
};

/** Make a call of the scheduler. Throws CallError. */
export function call<Name extends keyof Calls>(method: Name, request: Partly<Calls[Name]["request"]>): Promise<Calls[Name]["response"]> {
  return post(`api/v1/rpc/${method}`, request);
}

/** Log in with a token; the gateway keeps it in a cookie that no script reads. Throws CallError. */
export function login(token: string): Promise<Me> {
  return asked<Me>("api/v1/login", posted({ token }), false);
}

/** Log in with a password of the scheduler's users. Throws CallError. */
export function loginByPassword(user: string, password: string): Promise<Me> {
  return asked<Me>("api/v1/login", posted({ user, password }), false);
}

/** How one may log in beside with a token, and why the login with the provider that has just ended was none. */
export interface Ways {
  readonly has_passwords: boolean;
  /** What people call the provider; empty where there is none. */
  readonly provider: string;
  readonly problem: Pick<Problem, "reason" | "message" | "next_step"> | null;
}

/** Ask for them. Throws CallError. */
export function waysToLogIn(): Promise<Ways> {
  return asked<Ways>("api/v1/login", {}, false);
}

/** The address of the provider's page, from which one comes back to this view. Throws CallError. */
export function beginLogin(view: string): Promise<{ readonly address: string }> {
  return asked<{ readonly address: string }>("api/v1/login/provider", posted({ view }), false);
}

/** Log out. `is_ended` is false where the scheduler could not be told, and the login ends there by its time. Throws CallError. */
export function logout(): Promise<{ readonly is_ended: boolean }> {
  return post("api/v1/logout", {});
}

/** The address that lets this browser in at a program's own host. Throws CallError. */
export function enterProgram(name: string, state: string, path: string): Promise<{ readonly address: string }> {
  return post(`api/v1/programs/${encodeURIComponent(name)}/enter`, { state, path });
}

/** Who is logged in. Throws CallError, with status 401 where nobody is. */
export function whoAmI(): Promise<Me> {
  return asked<Me>("api/v1/me", {}, false);
}

function post<T>(path: string, request: object): Promise<T> {
  return asked<T>(path, posted(request), true);
}

function posted(request: object): RequestInit {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) };
}

async function asked<T>(path: string, options: RequestInit, tellsSession: boolean): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.timeout(ANSWER_MS_MAX) });
  } catch {
    throw new CallError(AWAY, 0);
  }
  if (!response.ok) {
    const error = await errorIn(response);
    if (tellsSession && error.status === 401) session.ended(error.problem);
    throw error;
  }
  try {
    return (await response.json()) as T;
  } catch {
    throw new CallError(AWAY, 0);
  }
}

export async function errorIn(response: Response): Promise<CallError> {
  try {
    return new CallError(((await response.json()) as { readonly error: Problem }).error, response.status);
  } catch {
    return new CallError({ ...AWAY, message: `The gateway answered with ${response.status}.` }, response.status || 0);
  }
}

/** Whether somebody is logged in, as far as the calls have told; the shell listens. */
class Session {
  private readonly listeners = new Set<(problem: Problem) => void>();
  private waiting: (() => void)[] = [];
  private isOn = false;

  onEnd(listener: (problem: Problem) => void): void {
    this.listeners.add(listener);
  }

  /** Somebody has logged in: streams that waited for it go on. */
  begin(): void {
    this.isOn = true;
    streams.cut();
    const waiting = this.waiting;
    this.waiting = [];
    for (const each of waiting) each();
  }

  ended(problem: Problem): void {
    if (!this.isOn) return;
    this.isOn = false;
    for (const listener of this.listeners) listener(problem);
  }

  /** Resolves once somebody is logged in, or when it is not wanted any more. */
  async isBegun(until: AbortSignal): Promise<void> {
    if (this.isOn || until.aborted) return;
    await new Promise<void>((resolve) => {
      this.waiting.push(resolve);
      until.addEventListener("abort", () => resolve(), { once: true });
    });
  }
}

export const session = new Session();

/** All streams of this page: what the shell shows of them. */
class Link {
  private readonly lost = new Map<object, { readonly problem: Problem | null; readonly heardAt: number }>();
  private readonly listeners = new Set<() => void>();

  /** Why something is not live just now; undefined where all is. */
  get trouble(): Problem | null | undefined {
    return this.lost.values().next().value?.problem;
  }

  /** When the first of what is lost was heard last, by this machine's clock. */
  get heardAt(): number {
    return Math.min(...[...this.lost.values()].map((each) => each.heardAt));
  }

  onChange(listener: () => void): void {
    this.listeners.add(listener);
  }

  tell(stream: object, state: Liveness, problem: Problem | null, heardAt = Date.now()): void {
    if (state === "stale") this.lost.set(stream, { problem, heardAt });
    else this.lost.delete(stream);
    for (const listener of this.listeners) listener();
  }
}

export const link = new Link();

/** Follow a stream until `until`. It comes back by itself, with the request that `request` makes then. */
export function stream<Name extends keyof Streams>(
  method: Name,
  request: Partly<Streams[Name]["request"]> | (() => Partly<Streams[Name]["request"]>),
  listener: StreamListener<Streams[Name]["response"]>,
  until: AbortSignal,
): void {
  void new Following(method, request, listener, until).run();
}

class Following<T> {
  private readonly method: string;
  private readonly request: object | (() => object);
  private readonly listener: StreamListener<T>;
  private readonly until: AbortSignal;
  private state: Liveness | null = null;
  private pause = RETRY_MS_MIN;
  private heardAt = Date.now();

  constructor(method: string, request: object | (() => object), listener: StreamListener<T>, until: AbortSignal) {
    this.method = method;
    this.request = request;
    this.listener = listener;
    this.until = until;
  }

  async run(): Promise<void> {
    while (!this.until.aborted) {
      await session.isBegun(this.until);
      await isSeen(this.until);
      if (this.until.aborted) break;
      const problem = await this.once();
      if (this.until.aborted) break;
      if (problem === "ended") return;
      // Nobody looks: it is not lost, but let go.
      if (problem === "hidden") continue;
      this.become("stale", problem);
      await pausing(this.pause * (0.5 + Math.random() / 2), this.until);
      this.pause = Math.min(this.pause * 2, RETRY_MS_MAX);
    }
    link.tell(this, "ended", null);
  }

  /** One connection as long as it lasts; answers why it ended. */
  private once(): Promise<Problem | "ended" | "hidden"> {
    const request = typeof this.request === "function" ? this.request() : this.request;
    return new Promise((resolve) => {
      let silence: ReturnType<typeof setTimeout> | undefined;
      const listen = () => {
        clearTimeout(silence);
        if (TOLD_REGULARLY.has(this.method)) silence = setTimeout(() => done(SILENT), QUIET_MS_MAX);
      };
      const done = (why: Problem | "ended" | "hidden") => {
        clearTimeout(silence);
        leave();
        seen();
        this.until.removeEventListener("abort", stop);
        resolve(why);
      };
      const stop = () => done("ended");
      const leave = streams.follow(this.method, request, {
        onMessage: (message) => {
          if (this.until.aborted) return;
          this.pause = RETRY_MS_MIN;
          this.heardAt = Date.now();
          listen();
          this.become("live", null);
          this.listener.onMessage(message as T);
        },
        onEnd: (ended) => {
          if (ended.why === "lost") done(AWAY);
          else if (ended.why === "error") done(this.refused(new CallError(ended.problem, statusOf(ended.problem))));
          else {
            this.become("ended", null);
            done("ended");
          }
        },
      });
      const seen = onceHidden(() => done("hidden"));
      listen();
      this.until.addEventListener("abort", stop, { once: true });
    });
  }

  private refused(error: CallError): Problem | "ended" {
    if (error.status === 401) {
      session.ended(error.problem);
      return error.problem;
    }
    if (error.mayPass) return error.problem;
    this.become("ended", error.problem);
    return "ended";
  }

  private become(state: Liveness, problem: Problem | null): void {
    if (state === this.state && state !== "stale") return;
    this.state = state;
    link.tell(this, state, problem, this.heardAt);
    this.listener.onState?.(state, problem);
  }
}

const GONE = new Set(["TOKEN_MISSING", "TOKEN_INVALID", "TOKEN_REVOKED"]);
const PASSING = new Set([
  ...["STORE_UNAVAILABLE", "SCHEDULER_UNREACHABLE", "SCHEDULER_STOPPING", "NODE_UNREACHABLE", "DEADLINE"],
  ...["TOO_MANY_STREAMS", "QUOTA_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN"],
]);

/** The status that an error of a stream would have had as an answer, as far as it matters here. */
function statusOf({ reason }: Problem): number {
  if (GONE.has(reason)) return 401;
  return PASSING.has(reason) ? 503 : 400;
}

/** Sleep, but not when the network is back. */
function pausing(ms: number, until: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      until.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    addEventListener("online", done);
    until.addEventListener("abort", done, { once: true });
  });
}

/** Resolves when somebody can see the page. */
function isSeen(until: AbortSignal): Promise<void> {
  if (!document.hidden || until.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !until.aborted) return;
      document.removeEventListener("visibilitychange", look);
      until.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    until.addEventListener("abort", look);
  });
}

/** Calls back when the page has not been seen for a while; what it answers stops that. */
function onceHidden(callback: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = () => {
    clearTimeout(timer);
    timer = document.hidden ? setTimeout(callback, HIDDEN_MS) : undefined;
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}
