// The page: one session at a time, and one of four screens that shows it. Read state.ts first.

import { Connection } from "./connection.ts";
import { h, show } from "./dom.ts";
import { Farewell } from "./farewell.ts";
import { Lobby } from "./lobby.ts";
import { Question } from "./question.ts";
import { forget, phraseOf, recall, remember } from "./remembered.ts";
import { Speech } from "./speech.ts";
import { Stage } from "./stage.ts";
import { PLACE_KEPT_MS, after, begin, isLive, type Happened, type Session } from "./state.ts";
import { Announcer } from "./announcer.ts";
import { WaitingRoom } from "./waiting.ts";
import type { Frame, Greeting, Room, ServerMessage } from "./wire.ts";
import { NOT_LET_IN } from "./words.ts";

/** How often the place is noted again, so that a reload knows how fresh it is. */
const REMEMBER_MS = 5_000;

/** How long a saved picture may take to be fetched from its address. */
const REVOKE_MS = 60_000;

class Page {
  private session: Session | null = null;
  private shownScreen = "";
  private rememberedAt = 0;
  /** The person has said that what they have with another model may end. */
  private replaces = false;
  /** Somebody asked for the session just now, and nobody was told so yet. */
  private isAsked = false;
  /** What was said last of the room for the picture. */
  private saidRoom: Room | null = null;
  private tickedAt = Date.now();
  private readonly speech = new Speech();
  private readonly announcer = new Announcer(this.speech);
  private readonly connection: Connection;
  private readonly lobby = new Lobby((model) => this.join(model), () => this.describe());
  private readonly waiting = new WaitingRoom(() => this.leave());
  private readonly farewell = new Farewell(
    () => this.join(this.session?.model ?? ""),
    () => this.choose(),
    () => void this.save(),
  );
  private readonly stage: Stage;
  private readonly question = new Question((model) => this.join(model, true));

  constructor() {
    this.connection = new Connection(socketAddress(), {
      greeting: () => this.greeting(),
      opened: () => this.happened({ kind: "opened" }),
      lost: (isFull) => this.happened({ kind: "lost", isFull }),
      refused: (words) => this.happened({ kind: "failed", message: words }),
      received: (message) => this.received(message),
      frame: (frame) => this.frame(frame),
    });
    this.stage = new Stage({
      input: (input) => this.connection.input(input),
      shown: (frame) => this.connection.say({ type: "shown", frame: frame.number }),
      sentAt: (seq) => this.connection.takeSentAt(seq),
      stillHere: () => this.connection.say({ type: "still_here" }),
      leave: () => this.leave(),
    });
  }

  start(): void {
    const screens = [this.lobby, this.waiting, this.stage, this.farewell].map((screen) => screen.root);
    const name = h("a", { class: "name", href: "./", "aria-label": "gpufleet, all models" }, h("i"), "gpufleet");
    name.addEventListener("click", (event) => {
      // While a session is on, the name is no way to lose it by accident.
      event.preventDefault();
      if (this.session === null || !isLive(this.session)) this.choose();
    });
    // A tab of its own: a session here goes on.
    const dashboard = h("a", { class: "to-dashboard", href: "dashboard", target: "_blank", rel: "noopener" }, "Dashboard");
    document.body.append(h("header", { class: "top" }, name, dashboard), ...screens, this.question.root, this.speech.root);
    const ticker = new Worker(new URL("./ticker.ts", import.meta.url), { type: "module" });
    ticker.onmessage = () => this.tick();
    addEventListener("online", () => this.connection.hurry());
    document.addEventListener("visibilitychange", () => this.look());
    const earlier = recall();
    // At once: the clock that asks again needs a worker, which takes its time to start.
    this.lobby.refresh();
    if (earlier !== null) this.hold(begin(earlier.model, earlier.key));
    else this.render();
    addEventListener("pagehide", () => this.session?.phase.kind === "turn" && this.stage.keep(this.session.model));
  }

  /** More is known of the models. */
  private describe(): void {
    if (this.session !== null) this.stage.describe(this.session.model, this.lobby.lineOf(this.session.model));
  }

  private join(model: string, replaces = false): void {
    this.replaces = replaces;
    this.isAsked = true;
    this.hold(begin(model, ""));
  }

  private hold(session: Session): void {
    this.session = session;
    this.stage.begin(session.model);
    this.describe();
    this.connection.hold();
    this.render();
  }

  /** Leave for good: the seat or place is free at once. */
  private leave(): void {
    if (this.session === null || !isLive(this.session)) return;
    this.connection.say({ type: "leave" });
    this.happened({ kind: "told", message: { type: "end", reason: "LEFT", message: "" } });
  }

  private choose(): void {
    this.session = null;
    this.lobby.refresh();
    this.render();
  }

  private async save(): Promise<void> {
    const picture = await this.stage.picture();
    if (picture === null) return;
    const address = URL.createObjectURL(picture);
    h("a", { href: address, download: `${this.session?.model ?? "picture"}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(address), REVOKE_MS);
  }

  private greeting(): Greeting & Room {
    const deliberate = this.isAsked;
    this.isAsked = false;
    this.saidRoom = this.stage.room();
    const [model, key] = [this.session?.model ?? "", this.session?.key ?? ""];
    return { model, place_key: key, keeps_other: !this.replaces, deliberate, pass_phrase: phraseOf(model), ...this.saidRoom };
  }

  /** Say it when the window, its zoom or its screen has changed. */
  private tellRoom(): void {
    const [was, is] = [this.saidRoom, this.stage.room()];
    if (was !== null && was.width === is.width && was.height === is.height && was.density === is.density) return;
    this.saidRoom = is;
    this.connection.say({ type: "resize", ...is });
  }

  private received(message: ServerMessage): void {
    if (message.type === "pong") return;
    if (message.type === "error") this.happened({ kind: "failed", message: `${message.message}. ${message.next_step}` });
    else if (message.type === "end" && message.reason === "OTHER_SESSION") this.askWhich(message.message);
    else if (message.type === "end" && NOT_LET_IN.has(message.reason)) this.notLetIn(message.reason, message.message);
    else this.happened({ kind: "told", message });
  }

  /** The person has something with another model: nothing ends that unasked. */
  private askWhich(has: string): void {
    const model = this.session?.model ?? "";
    this.connection.release();
    forget();
    this.choose();
    this.question.ask(model, has);
  }

  /** The model wants a pass phrase or a login: its card asks for it. */
  private notLetIn(reason: string, why: string): void {
    const model = this.session?.model ?? "";
    this.connection.release();
    forget();
    this.choose();
    this.lobby.refuse(model, reason, why);
  }

  private frame(frame: Frame): void {
    if (this.session?.phase.kind === "turn") this.stage.take(frame);
  }

  private happened(happened: Happened): void {
    if (this.session === null) return;
    const before = this.session;
    const now = performance.now();
    this.session = after(before, happened, now);
    if (this.session.key !== before.key && this.session.key !== "") this.note(now);
    if (before.phase.kind === "turn" && this.session.phase.kind !== "turn") this.stage.keep(before.model);
    if (before.phase.kind === "turn" && this.session.phase.kind === "waiting") this.stage.begin(this.session.model);
    if (!isLive(this.session)) {
      this.connection.release();
      forget();
    }
    this.announcer.changed(before, this.session, now);
    this.render();
  }

  private tick(): void {
    const wall = Date.now();
    const slept = wall - this.tickedAt;
    this.tickedAt = wall;
    // A machine that slept, or a tab that was frozen, comes back to a place that is given away: nobody joins unasked.
    if (slept > PLACE_KEPT_MS) this.happened({ kind: "told", message: { type: "end", reason: "DISCONNECTED", message: "" } });
    this.connection.tick();
    const now = performance.now();
    this.speech.tick(now);
    if (this.session !== null) {
      this.happened({ kind: "ticked" });
      if (isLive(this.session) && this.session.link === "open" && now - this.rememberedAt > REMEMBER_MS) this.note(now);
      this.announcer.ticked(this.session, now);
      if (this.session.phase.kind === "turn" && this.session.link === "open") this.tellRoom();
    } else {
      this.lobby.tick();
    }
  }

  private note(now: number): void {
    if (this.session === null || this.session.key === "") return;
    this.rememberedAt = now;
    remember(this.session.model, this.session.key);
  }

  /** Somebody looks at the page again. */
  private look(): void {
    if (document.hidden) return;
    this.connection.hurry();
    this.stage.wake();
    if (this.session === null) this.lobby.refresh();
  }

  private render(): void {
    const now = performance.now();
    const { session } = this;
    const phase = session?.phase ?? null;
    if (session !== null && phase?.kind === "turn") this.stage.update(session, phase, now);
    else if (session !== null && phase?.kind === "ended") this.farewell.update(session.model, phase, this.stage.hasPicture);
    else if (session !== null) this.waiting.update(session, now);
    document.title = this.announcer.title(session, now);
    const screen = phase === null ? "lobby" : phase.kind === "joining" ? "waiting" : phase.kind;
    if (screen !== this.shownScreen) this.turnTo(screen);
  }

  private turnTo(screen: string): void {
    const isFirst = this.shownScreen === "";
    this.shownScreen = screen;
    document.body.dataset["screen"] = screen;
    show(this.lobby.root, screen === "lobby");
    show(this.waiting.root, screen === "waiting");
    show(this.stage.root, screen === "turn");
    show(this.farewell.root, screen === "ended");
    scrollTo(0, 0);
    if (screen === "turn") this.stage.focus();
    else if (!isFirst) {
      const { heading } = screen === "lobby" ? this.lobby : screen === "waiting" ? this.waiting : this.farewell;
      heading.focus();
    }
  }
}

function socketAddress(): string {
  const address = new URL("ws", document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  return address.href;
}

new Page().start();
