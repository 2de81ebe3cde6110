// One model: its line in a sentence, its workers, and the people who have a turn or wait.

import { h, show, write } from "../../dom.ts";
import type { CountedRequests, Model, Session, WorkerInfo } from "../../generated/messages.ts";
import { jobLink, section } from "../job/parts.ts";
import { mayChange } from "../person.ts";
import { part, Rows, say, type Column } from "../rows.ts";
import { now } from "../time.ts";
import { whole } from "../values.ts";
import { ABSENT, between, lasting, secondsOf, sentence } from "../words.ts";
import { drainWorker, endSession } from "./acting.ts";
import { accessWords, cpuWords, fallbackWords, frames, groupWords, latencyWords, lineWords, stateWords } from "./words.ts";

/** People of a model that are shown; all of them: gpuctl. */
const SHOWN_MAX = 100;

export class ModelBox {
  readonly root: HTMLElement;
  private readonly facts = h("p", { class: "facts" });
  private readonly failure = h("p", { class: "note" });
  private readonly fallBacks = h("p", { class: "note" });
  private readonly more = h("p", { class: "hint" });
  private readonly workers: Rows<WorkerInfo>;
  private readonly sessions: Rows<Session>;
  private owner = "";

  constructor(private readonly name: string, private readonly changed: () => void) {
    this.workers = new Rows(`Workers of ${name}`, "workers", this.workerColumns(), (each) => each.worker_start || `job-${String(each.job_id)}`, "No worker.");
    this.sessions = new Rows(`Sessions of ${name}`, "sessions", this.sessionColumns(), ({ id }) => id, "Nobody is here.");
    this.root = section(`model-${name}`, name, this.facts, this.failure, this.fallBacks, this.workers.root, this.sessions.root, this.more);
    this.root.classList.add("served");
  }

  update(model: Model, sessions: readonly Session[], counted: readonly CountedRequests[]): void {
    this.owner = model.owner;
    const { words: fellBack, isMuch } = fallbackWords(model, counted);
    const facts = [lineWords(model, sessions, now() / 1_000), groupWords(model), cpuWords(model), isMuch ? "" : fellBack, accessWords(model), `served by ${model.owner}`];
    write(this.fallBacks, isMuch ? sentence(`of its requests ${fellBack}: more workers with GPUs keep them`) : "");
    show(this.fallBacks, isMuch);
    write(this.facts, facts.filter((each) => each !== "").join(" · "));
    write(this.failure, model.failure ? sentence(`it has failed: ${model.failure.message}`) : "");
    show(this.failure, Boolean(model.failure));
    this.workers.update(model.workers);
    this.sessions.update(sessions.slice(0, SHOWN_MAX));
    const hidden = model.waiting_count + model.turn_count - Math.min(SHOWN_MAX, sessions.length);
    write(this.more, hidden > 0 ? `${hidden.toLocaleString("en")} more wait.` : "");
    show(this.more, hidden > 0);
  }

  /** Time has passed. */
  refresh(): void {
    this.sessions.refresh();
  }

  private workerColumns(): readonly Column<WorkerInfo>[] {
    return [
      { key: "name", title: "Worker", fill: (cell, { name, job_id: job }) => {
        const id = String(job);
        if (cell.dataset["job"] === `${id}/${name}`) return;
        cell.dataset["job"] = `${id}/${name}`;
        cell.replaceChildren(whole(job) > 0 ? jobLink(job, name || `job ${id}`) : name || ABSENT);
      } },
      { key: "state", title: "State", fill: (cell, { state, message }) => {
        const badge = part(cell, "badge", "span", { class: "badge" });
        const word = state.replace("WORKER_STATE_", "").toLowerCase();
        write(badge, word);
        badge.dataset["tone"] = word === "ready" ? "good" : word === "failed" ? "bad" : "busy";
        say(cell, "message", word === "ready" ? "" : sentence(message), "of");
      } },
      { key: "seats", title: "Seats", fill: (cell, { seats, taken_seats: taken }) => write(cell, seats > 0 ? `${taken} of ${seats}` : ABSENT) },
      { key: "load", title: "Load", fill: (cell, { load, seats }) => write(cell, seats > 0 ? `${Math.round(load * 100)}\u00a0%` : ABSENT) },
      { key: "where", title: "Where", fill: (cell, { endpoint }) => write(cell, endpoint || ABSENT) },
      { key: "actions", title: "", fill: (cell, worker) => {
        const button = this.button(cell, "Drain", `Drain ${worker.name || `job ${String(worker.job_id)}`}`);
        show(button, mayChange(this.owner) && !worker.state.endsWith("_DRAINING"));
        button.onclick = () => drainWorker(this.name, worker, this.changed);
      } },
    ];
  }

  private sessionColumns(): readonly Column<Session>[] {
    return [
      { key: "name", title: "Session", fill: (cell, { id, person }) => {
        say(cell, "id", id);
        say(cell, "person", person === "" ? "" : `person ${person}`, "of");
      } },
      { key: "state", title: "State", fill: (cell, session) => {
        const badge = part(cell, "badge", "span", { class: "badge" });
        write(badge, stateWords(session));
        badge.dataset["tone"] = session.place > 0 ? "busy" : "good";
        say(cell, "away", session.is_present ? "" : "not connected now", "of");
      } },
      { key: "time", title: "Since", fill: (cell, { turn_start_time: turn, join_time: join }) => {
        const waited = between(join, turn ?? now());
        say(cell, "turn", turn === undefined ? `waits ${lasting(waited)}` : `${lasting(between(turn, now()))} of turn`);
        say(cell, "waited", turn === undefined ? "" : `after ${lasting(waited)}`, "of");
      } },
      { key: "idle", title: "Last input", fill: (cell, { since_input: idle }) => write(cell, idle === undefined ? ABSENT : `${lasting(secondsOf(idle))} ago`) },
      { key: "frames", title: "Frames", fill: (cell, { frames_per_second: rate, latency }) => {
        say(cell, "rate", rate === undefined || rate <= 0 ? ABSENT : frames(rate));
        say(cell, "latency", latency === undefined ? "" : latencyWords(latency), "of");
      } },
      { key: "where", title: "Worker", fill: (cell, { worker }) => write(cell, worker || ABSENT) },
      { key: "actions", title: "", fill: (cell, session) => {
        const button = this.button(cell, "End", `End session ${session.id}`);
        show(button, mayChange(this.owner));
        button.onclick = () => endSession(session, this.changed);
      } },
    ];
  }

  private button(cell: HTMLElement, words: string, label: string): HTMLButtonElement {
    const button = part(cell, "act", "button", { class: "quiet small", type: "button", "aria-label": label });
    write(button, words);
    return button;
  }
}
