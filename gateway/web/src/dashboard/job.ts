// The page of one job: #/job/ID. Each part has a file in job/; this one reads the job, follows it, and tells them.

import { h, show as reveal } from "../dom.ts";
import type { Attempt, Job, WatchResponse } from "../generated/messages.ts";
import { call, CallError, stream } from "./api.ts";
import { Files } from "./job/files.ts";
import { Gpus } from "./job/gpus.ts";
import { Head, missing } from "./job/head.ts";
import { Items } from "./job/items.ts";
import "./job/job.css";
import { Output } from "./job/output.ts";
import { choice } from "./job/parts.ts";
import { pause } from "./job/pace.ts";
import { Placed } from "./job/placed.ts";
import { Ports } from "./job/ports.ts";
import { Story } from "./job/story.ts";
import { Waiting } from "./job/waiting.ts";
import { everySecond, heard, now } from "./time.ts";
import { whole } from "./values.ts";
import { hasEnded, sentence } from "./words.ts";

const RETRY_MS = 3_000;
/** How often it is asked what became of the results of a job that has ended. */
const RESULTS_MS = 2_000;

export function show(place: HTMLElement, parameter: string, until: AbortSignal): void {
  const id = Number(parameter);
  if (Number.isSafeInteger(id) && id > 0) void new JobPage(place, id, until).begin();
  else place.append(missing(parameter === "" ? "Which job? Choose one of a list." : `“${parameter}” is no job id: they are whole numbers.`));
}

class JobPage {
  private readonly head: Head;
  private readonly waiting: Waiting;
  private readonly items: Items;
  private readonly files: Files;
  private readonly gpus: Gpus;
  private readonly output: Output;
  private readonly ports: Ports;
  private readonly story: Story;
  private readonly placed = new Placed();
  private readonly attempts = choice("Attempt", () => this.tell());
  private job: Job | undefined;
  private isInPicture = false;
  private results: Job["results"];
  private resultsAskedAt = 0;

  constructor(private readonly place: HTMLElement, private readonly id: number, private readonly until: AbortSignal) {
    this.head = new Head(id);
    this.waiting = new Waiting(id, until);
    this.items = new Items(id, until);
    this.files = new Files(id, until);
    this.gpus = new Gpus(id, until);
    this.output = new Output(id, until);
    this.ports = new Ports(id);
    this.story = new Story(id, until);
    reveal(this.attempts.element, false);
  }

  async begin(): Promise<void> {
    this.place.append(h("h1", { tabindex: "-1" }, `Job ${this.id}`));
    const job = await this.first();
    if (job === undefined) return;
    const hadFocus = this.place.contains(document.activeElement);
    this.place.replaceChildren(
      this.head.element, this.waiting.element, this.items.element, this.attempts.element,
      this.output.element, this.ports.element, this.files.element, this.gpus.element, this.gpus.stats.element, this.story.element, this.placed.element,
    );
    this.take(job);
    // Whoever came by a link stands at the heading, also when it is another one now.
    if (hadFocus) this.place.querySelector("h1")?.focus();
    everySecond(() => this.tick(), this.until);
    // Each time that it comes back it begins with the job as it is then.
    stream("Watch", { job_ids: [String(this.id)] }, { onMessage: (change) => this.changed(change) }, this.until);
  }

  /** The job as it is now; tried until there is an answer, and nothing where there is no such job. */
  private async first(): Promise<Job | undefined> {
    while (!this.until.aborted) {
      try {
        const { job } = await call("GetJob", { job_id: String(this.id) });
        this.results = job?.results;
        return this.until.aborted ? undefined : job;
      } catch (problem) {
        if (!(problem instanceof CallError)) throw problem;
        if (!problem.mayPass && problem.status !== 401) {
          if (!this.until.aborted) this.place.replaceChildren(missing(`${sentence(problem.problem.message)} ${sentence(problem.problem.next_step)}`));
          return undefined;
        }
        await pause(RETRY_MS, this.until);
      }
    }
    return undefined;
  }

  private changed({ event, job, view_time: at }: WatchResponse): void {
    heard(at);
    const isOwn = job !== undefined && whole(job.id) === this.id;
    if (isOwn && event !== "WATCH_EVENT_REMOVED") this.take(job);
    if (event === "WATCH_EVENT_SNAPSHOT" && isOwn) this.isInPicture = true;
    else if (event === "WATCH_EVENT_SYNCED") {
      // A scheduler of before shows no job that has ended, be it before or while nobody was heard.
      if (!this.isInPicture) void this.again();
      this.isInPicture = false;
    }
  }

  private async again(): Promise<void> {
    const job = await this.first();
    if (job !== undefined) this.take(job);
  }

  private take(job: Job): void {
    this.job = job;
    const known = job.attempts.map(({ number }): [string, string] => [String(number), String(number)]);
    this.attempts.offer([["0", "newest"], ...known.slice(0, -1).reverse()]);
    this.tell();
    this.story.update();
  }

  /** Tell every part of the job as it is, and of the attempt that is looked at. */
  private tell(): void {
    const { job } = this;
    if (job === undefined) return;
    const at = now() / 1_000;
    const attempt = this.lookedAt(job);
    this.head.update(this.withResults(job), attempt, at);
    this.waiting.update(job, at);
    this.items.update(job);
    this.files.update(this.withResults(job), at);
    this.gpus.update(job, attempt);
    this.output.update(job, Number(this.attempts.select.value));
    this.ports.update(job, attempt);
    this.placed.update(attempt, at);
  }

  private tick(): void {
    if (this.job === undefined) return;
    this.head.update(this.withResults(this.job), this.lookedAt(this.job), now() / 1_000);
    this.files.update(this.withResults(this.job), now() / 1_000);
    void this.askResults(this.job);
  }

  private withResults(job: Job): Job {
    return this.results === undefined ? job : { ...job, results: this.results };
  }

  /** What became of its results, which no change of a job tells: asked now and then until it is settled. */
  private async askResults(job: Job): Promise<void> {
    const isOpen = this.results === undefined || ["RESULTS_STATE_COMING", "RESULTS_STATE_UNKNOWN"].includes(this.results.state);
    const isDue = hasEnded(job.state) && job.spec.results.length > 0 && isOpen;
    if (!isDue || Date.now() - this.resultsAskedAt < RESULTS_MS) return;
    this.resultsAskedAt = Date.now();
    const known = await this.first();
    if (known !== undefined) this.tell();
  }

  private lookedAt(job: Job): Attempt | undefined {
    const wanted = Number(this.attempts.select.value);
    return wanted === 0 ? job.attempts.at(-1) : job.attempts.find(({ number }) => number === wanted);
  }
}
