// The queue, live: what runs with its time and limit, what waits with its reason, place, estimate and latest start.

import { h, show as setShown, write } from "../dom.ts";
import type { Job, WatchResponse } from "../generated/messages.ts";
import { CallError, call, stream } from "./api.ts";
import { user } from "./person.ts";
import { RUNNING, WAITING } from "./queue/columns.ts";
import { Lines, countsInWords, total } from "./queue/lines.ts";
import { Rows } from "./rows.ts";
import { onEnd } from "./toast.ts";
import { everySecond, heard } from "./time.ts";
import { counted, sentence } from "./words.ts";

/** Jobs on the page; more are shown when somebody wants them. */
export const JOBS_SHOWN = 200;
export const JOBS_SHOWN_MAX = 1_000;

/** Changes that come faster are shown together. */
const DRAW_MS = 150;
/** The order is read again behind a change, and no more often than this. */
const READ_MS = 1_500;

export function show(place: HTMLElement, _parameter: string, until: AbortSignal): void {
  new Queue(place, until).follow();
}

class Queue {
  private readonly lines = new Lines();
  private readonly totals = h("p", { class: "totals" }, "Asking the scheduler …");
  private readonly trouble = h("p", { class: "trouble", role: "status", hidden: true });
  private readonly whose = h("select", { id: "queue-whose" }, h("option", { value: "" }, "everybody's"), h("option", { value: "mine" }, "mine"));
  private readonly more: HTMLButtonElement;
  private readonly running = new Rows<Job>("Running jobs", "running", RUNNING, idOf, "Nothing runs.");
  private readonly waiting = new Rows<Job>("Waiting jobs", "waiting", WAITING, idOf, "Nothing waits.");
  private readonly until: AbortSignal;
  private shownMax = JOBS_SHOWN;
  private draws = false;
  private reads = false;
  private mustRead = false;
  private readAt = -READ_MS;

  constructor(place: HTMLElement, until: AbortSignal) {
    this.until = until;
    this.whose.addEventListener("change", () => this.draw());
    this.more = h("button", { class: "quiet", onclick: () => this.showMore(), hidden: true });
    place.append(
      h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, "Queue"), this.totals),
      h("div", { class: "filters" }, h("span", { class: "chosen" }, h("label", { for: "queue-whose" }, "Show"), this.whose)),
      this.trouble,
      h("h2", { class: "part" }, "Running"),
      this.running.root,
      h("h2", { class: "part" }, "Waiting"),
      this.waiting.root,
      this.more,
    );
  }

  follow(): void {
    const request = { skip_snapshot: true };
    stream("Watch", request, { onMessage: (message) => this.take(message), onState: onEnd(this.totals) }, this.until);
    everySecond(() => {
      this.running.refresh();
      this.waiting.refresh();
    }, this.until);
  }

  private take(message: WatchResponse): void {
    heard(message.view_time);
    if (message.event === "WATCH_EVENT_SYNCED") {
      this.readAt = -READ_MS;
      this.read();
    }
    if (message.job === undefined) return;
    if (this.lines.count < JOBS_SHOWN_MAX || message.event !== "WATCH_EVENT_CHANGED") {
      if (this.lines.takeJob(message.job)) this.read();
    } else {
      this.read();
    }
    this.drawSoon();
  }

  /** Read the order anew, soon and not too often; a change during it is read behind it. */
  private read(): void {
    if (this.reads) {
      this.mustRead = true;
      return;
    }
    this.reads = true;
    const pause = Math.max(DRAW_MS, this.readAt + READ_MS - performance.now());
    setTimeout(() => void this.readNow(), this.readAt < 0 ? 0 : pause);
  }

  private async readNow(): Promise<void> {
    if (this.until.aborted) return;
    this.mustRead = false;
    this.readAt = performance.now();
    try {
      const answer = await call("Queue", { page_size: this.shownMax, omit_env: true });
      heard(answer.view_time);
      if (!this.mustRead) this.lines.takePage(answer.jobs);
      write(this.totals, countsInWords(answer.counts));
      const hidden = answer.next_page_token === "" ? 0 : total(answer.counts) - answer.jobs.length;
      this.tellMore(hidden);
      setShown(this.trouble, false);
      this.drawSoon();
    } catch (error) {
      // While the scheduler is away the shell says so; the stream asks again when it is back.
      if (error instanceof CallError && !error.mayPass && error.status !== 401) {
        write(this.trouble, sentence(error.problem.message));
        setShown(this.trouble, true);
      }
      this.mustRead = false;
    } finally {
      this.reads = false;
    }
    if (this.mustRead) this.read();
  }

  private tellMore(hidden: number): void {
    const mayBeMore = this.shownMax < JOBS_SHOWN_MAX;
    write(this.more, mayBeMore ? `Show more of ${counted(hidden, "further job")}` : `${counted(hidden, "further job")}: gpuctl queue`);
    this.more.disabled = !mayBeMore;
    setShown(this.more, hidden > 0);
  }

  private showMore(): void {
    this.shownMax = Math.min(JOBS_SHOWN_MAX, this.shownMax + JOBS_SHOWN);
    this.readAt = -READ_MS;
    this.read();
  }

  private drawSoon(): void {
    if (this.draws) return;
    this.draws = true;
    setTimeout(() => {
      this.draws = false;
      if (!this.until.aborted) this.draw();
    }, DRAW_MS);
  }

  private draw(): void {
    const { running, waiting } = this.lines.split(this.whose.value === "mine" ? user() : "");
    this.running.update(running);
    this.waiting.update(waiting);
  }
}

function idOf(job: Job): string {
  return job.id;
}
