// Who plays and who waits, model by model, and how many came over the last days. For those who operate it.

import { h, show as reveal, write } from "../dom.ts";
import type { CountedRequests, Model, Session } from "../generated/messages.ts";
import { call, link } from "./api.ts";
import "./job/job.css";
import { pause } from "./job/pace.ts";
import { problemWords } from "./job/parts.ts";
import { History } from "./sessions/history.ts";
import { ModelBox } from "./sessions/model.ts";
import "./sessions/sessions.css";
import { everySecond, now } from "./time.ts";
import { counted } from "./words.ts";
import { CallError } from "./api.ts";

/** How often it is asked how things are, while somebody looks. */
const READ_MS = 2_000;
/** How often it is asked what fell back, and over how long. */
const COUNTED_MS = 30_000;
const COUNTED_SPAN_MS = 3_600_000;
/** Models and sessions on the page; more are told by gpuctl models. */
const MODELS_MAX = 100;
const SESSIONS_MAX = 1_000;

export function show(place: HTMLElement, _parameter: string, until: AbortSignal): void {
  void new Sessions(place, until).follow();
}

class Sessions {
  private readonly totals = h("p", { class: "totals" }, "Asking the scheduler …");
  private readonly list = h("div", {});
  private readonly empty = h("div", { class: "empty-view" }, h("h2", {}, "No model is served"), h("p", {}, "Serve one, and people find it in the lobby:"), h("pre", {}, h("code", {}, "gpuctl serve test-pattern")));
  private readonly boxes = new Map<string, ModelBox>();
  private readonly history: History;
  private people = "";
  private counted: readonly CountedRequests[] = [];
  private countedAt = -COUNTED_MS;
  private wake = new AbortController();

  constructor(place: HTMLElement, private readonly until: AbortSignal) {
    const lobby = h("a", { href: "./" }, "The lobby, as people see it");
    this.history = new History(until);
    place.append(h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, "Sessions"), this.totals), h("p", { class: "hint" }, lobby), this.list, this.empty, this.history.element);
    reveal(this.empty, false);
    everySecond(() => this.boxes.forEach((box) => box.refresh()), until);
  }

  /** Ask, show, wait; at once behind something that was done here. */
  async follow(): Promise<void> {
    while (!this.until.aborted) {
      if (!document.hidden) await this.read();
      this.wake = new AbortController();
      await pause(READ_MS, AbortSignal.any([this.until, this.wake.signal]));
    }
    link.tell(this, "live", null);
  }

  private async read(): Promise<void> {
    try {
      const [{ models }, { sessions }] = await Promise.all([
        call("ListModels", { page_size: MODELS_MAX }),
        call("ListSessions", { page_size: SESSIONS_MAX }),
      ]);
      if (models.some(({ http }) => http !== undefined && http.cpu_model !== "")) await this.count();
      if (this.until.aborted) return;
      link.tell(this, "live", null);
      this.take(models, sessions);
    } catch (problem) {
      if (!(problem instanceof CallError)) throw problem;
      if (this.until.aborted) return;
      if (problem.mayPass) link.tell(this, "stale", problem.problem);
      else write(this.totals, problemWords(problem));
    }
  }

  /** Ask what fell back, now and then. */
  private async count(): Promise<void> {
    const at = performance.now();
    if (at - this.countedAt < COUNTED_MS) return;
    this.countedAt = at;
    try {
      ({ rows: this.counted } = await call("ListRequestUsage", { start_time: new Date(now() - COUNTED_SPAN_MS).toISOString() }));
    } catch (problem) {
      // What is counted cannot be told now; all else can.
      if (!(problem instanceof CallError)) throw problem;
    }
  }

  private take(models: readonly Model[], sessions: readonly Session[]): void {
    const kept = new Set(models.map(({ name }) => name));
    for (const [name, box] of this.boxes) {
      if (kept.has(name)) continue;
      box.root.remove();
      this.boxes.delete(name);
    }
    models.forEach((model, at) => {
      let box = this.boxes.get(model.name);
      if (box === undefined) {
        box = new ModelBox(model.name, () => this.wake.abort());
        this.boxes.set(model.name, box);
        this.list.insertBefore(box.root, this.list.children[at] ?? null);
      }
      box.update(model, sessions.filter((each) => each.model === model.name), this.counted);
    });
    const people = sessions.map(({ id, turn_start_time: turn }) => `${id}/${turn ?? ""}`).join();
    if (people !== this.people) this.history.refresh();
    this.people = people;
    const sum = (pick: (model: Model) => number): number => models.reduce((all, model) => all + pick(model), 0);
    const turns = sum((model) => model.turn_count), waiting = sum((model) => model.waiting_count);
    write(this.totals, `${turns} ${turns === 1 ? "has" : "have"} a turn · ${waiting} wait${waiting === 1 ? "s" : ""} · ${counted(sum(({ workers }) => workers.length), "worker")} of ${counted(models.length, "model")}`);
    reveal(this.empty, models.length === 0);
  }
}
