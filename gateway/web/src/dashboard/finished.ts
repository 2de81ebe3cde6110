// Jobs that have ended, newest first: how, how long, and on which GPUs. New ends come by themselves.

import { h, show as setShown, write } from "../dom.ts";
import type { Job, JobState, QueueResponse, WatchResponse } from "../generated/messages.ts";
import { CallError, call, stream } from "./api.ts";
import { maySubmit, user } from "./person.ts";
import { NAME, USER } from "./queue/columns.ts";
import { addressOf } from "./router.ts";
import { Rows, part, say, type Column } from "./rows.ts";
import { onEnd } from "./toast.ts";
import { everySecond, heard, now } from "./time.ts";
import { ABSENT, between, clock, ending, gpusHad, hasEnded, itemsInWords, lasting, sentence, toneOf } from "./words.ts";

const STATES: readonly JobState[] = ["JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_TIMED_OUT"];
const PAGE = 50;
/** More are not kept on the page: gpuctl queue -a has them all. */
export const JOBS_MAX = 1_000;
/** The first page is read again behind an end, and no more often than this. */
const READ_MS = 1_500;

const GPUS: Column<Job> = {
  key: "gpus",
  title: "GPUs",
  fill(cell, job) {
    const gpus = gpusHad(job);
    say(cell, "gpus", gpus || "N/A");
    const link = part(cell, "stats", "a", { class: "stats" });
    const address = addressOf("job", job.id);
    if (link.getAttribute("href") !== address) link.href = address;
    write(link, "stats");
    link.setAttribute("aria-label", `stats of job ${job.id}`);
    setShown(link, job.has_stats);
  },
};

const HOW: Column<Job> = {
  key: "state",
  title: "How it ended",
  fill(cell, job) {
    const badge = part(cell, "badge", "span", { class: "badge" });
    write(badge, ending(job));
    badge.dataset["tone"] = toneOf(job.state);
    const more = job.array_counts === undefined ? "" : itemsInWords(job.array_counts);
    say(cell, "more", more || (job.state === "JOB_STATE_SUCCEEDED" ? "" : sentence(job.exit_message)), "of");
  },
};

const RAN: Column<Job> = {
  key: "time",
  title: "Ran",
  fill: (cell, job) => write(cell, job.start_time === undefined ? ABSENT : lasting(between(job.start_time, job.end_time ?? now()))),
};

const ENDED: Column<Job> = {
  key: "ended",
  title: "Ended",
  fill(cell, job) {
    const at = Date.parse(job.end_time ?? "");
    say(cell, "clock", Number.isNaN(at) ? ABSENT : clock(at, now()));
    say(cell, "ago", Number.isNaN(at) ? "" : `${lasting((now() - at) / 1_000)} ago`, "of");
  },
};

const AGAIN: Column<Job> = {
  key: "actions",
  title: "Again",
  fill(cell, job) {
    const link = part(cell, "link", "a", { class: "button quiet small" });
    write(link, "Resubmit");
    link.setAttribute("aria-label", `Resubmit job ${job.id}`);
    const address = addressOf("submit", job.id);
    if (link.getAttribute("href") !== address) link.href = address;
    setShown(link, maySubmit() && job.spec.serves === "");
  },
};

export function show(place: HTMLElement, _parameter: string, until: AbortSignal): void {
  new Finished(place, until).follow();
}

class Finished {
  private jobs: Job[] = [];
  private nextPage = "";
  private readonly totals = h("p", { class: "totals" });
  private readonly trouble = h("p", { class: "trouble", role: "status", hidden: true });
  private readonly whose = h("select", { id: "finished-whose" }, h("option", { value: "" }, "everybody's"), h("option", { value: "mine" }, "mine"));
  private readonly rows = new Rows<Job>("Finished jobs", "finished", [NAME, USER, HOW, GPUS, RAN, ENDED, AGAIN], (job) => job.id, "No job has ended yet.");
  private readonly older: HTMLButtonElement;
  private readonly until: AbortSignal;
  private reads = false;
  private mustRead = false;
  private readAt = -READ_MS;

  constructor(place: HTMLElement, until: AbortSignal) {
    this.until = until;
    this.older = h("button", { class: "quiet", onclick: () => void this.readOlder(), hidden: true }, "Show older ones");
    this.whose.addEventListener("change", () => {
      this.jobs = [];
      this.readAt = -READ_MS;
      this.read();
    });
    place.append(
      h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, "Finished jobs"), this.totals),
      h("div", { class: "filters" }, h("span", { class: "chosen" }, h("label", { for: "finished-whose" }, "Show"), this.whose)),
      this.trouble,
      this.rows.root,
      this.older,
    );
  }

  follow(): void {
    stream("Watch", { skip_snapshot: true }, { onMessage: (message) => this.take(message), onState: onEnd(this.totals) }, this.until);
    everySecond(() => this.rows.refresh(), this.until);
  }

  private take(message: WatchResponse): void {
    heard(message.view_time);
    if (message.event === "WATCH_EVENT_SYNCED") this.readAt = -READ_MS;
    if (message.event === "WATCH_EVENT_SYNCED" || (message.job != null && hasEnded(message.job.state))) this.read();
  }

  private read(): void {
    if (this.reads) {
      this.mustRead = true;
      return;
    }
    this.reads = true;
    setTimeout(() => void this.readNow(), Math.max(0, this.readAt + READ_MS - performance.now()));
  }

  private async readNow(): Promise<void> {
    if (this.until.aborted) return;
    this.mustRead = false;
    this.readAt = performance.now();
    const answer = await this.page("");
    this.reads = false;
    if (answer === null) return;
    const known = new Set(answer.jobs.map((job) => job.id));
    const isFirst = this.jobs.length === 0;
    const older = this.jobs.filter((job) => !known.has(job.id));
    // Without a job that both know there is a gap between them: what is older is read anew.
    const isJoined = isFirst || older.length < this.jobs.length;
    if (isFirst || !isJoined) this.nextPage = answer.next_page_token;
    this.jobs = (isJoined ? [...answer.jobs, ...older] : [...answer.jobs]).slice(0, JOBS_MAX);
    this.draw();
    if (this.mustRead) this.read();
  }

  private async readOlder(): Promise<void> {
    this.older.disabled = true;
    const answer = await this.page(this.nextPage);
    this.older.disabled = false;
    if (answer === null) return;
    const known = new Set(this.jobs.map((job) => job.id));
    this.nextPage = answer.next_page_token;
    this.jobs = [...this.jobs, ...answer.jobs.filter((job) => !known.has(job.id))].slice(0, JOBS_MAX);
    this.draw();
  }

  private async page(token: string): Promise<QueueResponse | null> {
    const whose = this.whose.value === "mine" ? user() : "";
    const request = { user: whose, states: STATES, include_finished: true, page_size: PAGE, page_token: token, omit_env: true };
    try {
      const answer = await call("Queue", request);
      heard(answer.view_time);
      setShown(this.trouble, false);
      return answer;
    } catch (error) {
      // While the scheduler is away the shell says so; the stream asks again when it is back.
      if (error instanceof CallError && !error.mayPass && error.status !== 401) {
        write(this.trouble, sentence(error.problem.message));
        setShown(this.trouble, true);
      }
      return null;
    }
  }

  private draw(): void {
    this.rows.update(this.jobs);
    setShown(this.older, this.nextPage !== "" && this.jobs.length < JOBS_MAX);
  }
}
