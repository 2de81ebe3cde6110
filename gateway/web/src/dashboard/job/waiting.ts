// Why a job waits, and when it will start.

import { h, show, write } from "../../dom.ts";
import type { Explanation, Job } from "../../generated/messages.ts";
import { call } from "../api.ts";
import { time } from "../values.ts";
import { isWaiting, likely, sentence } from "../words.ts";
import { paced } from "./pace.ts";
import { Facts, jobLink, problemWords, section, Table } from "./parts.ts";
import { clockWords, lasted } from "./words.ts";

const EXPLAIN_MS = 2_000;

export class Waiting {
  readonly element: HTMLElement;
  private readonly reason = h("p", { class: "reason" });
  private readonly change = h("p", { class: "hint" });
  private readonly facts = new Facts("Place");
  private readonly nodes = new Table("Each node, and why it does not take the job now", ["Node", "Now", "Why"], 9);
  private readonly more = h("details", {}, h("summary", {}, "Node by node"), this.nodes.element);
  private readonly ask: () => void;

  constructor(id: number, until: AbortSignal) {
    this.element = section("waiting", "Why it waits", this.reason, this.change, this.facts.element, this.more);
    show(this.element, false);
    this.ask = paced(async () => {
      try {
        const { job, explanation } = await call("Explain", { job_id: String(id) });
        this.explain(job, explanation);
      } catch (problem) {
        // The job's own words stand; they are asked for again with its next change.
        write(this.change, problemWords(problem));
      }
    }, EXPLAIN_MS, until);
  }

  update(job: Job, now: number): void {
    const waits = isWaiting(job.state);
    show(this.element, waits);
    if (!waits) return;
    const { wait_reason: reason } = job;
    if (reason !== undefined) write(this.reason, sentence(reason.sentence));
    const estimate = time(job.estimated_start_time), latest = time(job.latest_start_time);
    this.facts.set("Estimated start", estimate === undefined ? job.estimate_sentence : ahead(estimate, now));
    this.facts.set("Likely start", likely(job, now) || undefined);
    this.facts.set("Latest start", latest === undefined ? job.bound_sentence : ahead(latest, now));
    this.ask();
  }

  private explain(job: Job, told: Explanation): void {
    this.facts.set("Place", job.queue_position > 0 ? job.queue_position.toLocaleString("en") : undefined);
    if (told.reason !== undefined) write(this.reason, sentence(told.reason.sentence));
    write(this.change, `It would start now ${told.nearest_change}.`);
    show(this.change, told.nearest_change !== "");
    const others = told.ahead_count - told.ahead_job_ids.length;
    const ids = told.ahead_job_ids.flatMap((id, index) => [index > 0 ? ", " : "", jobLink(id)]);
    this.facts.set("Behind", told.ahead_count === 0 ? undefined : h("span", {}, ...ids, others > 0 ? ` and ${others.toLocaleString("en")} more` : ""));
    show(this.more, told.nodes.length > 0);
    this.nodes.fill(told.nodes.map(({ node, fits, sentence: why }) => [node, fits ? "fits" : "does not fit", why]));
  }
}

function ahead(at: number, now: number): string {
  return at > now ? `${clockWords(at, now)}, in ${lasted(at - now)}` : `${clockWords(at, now)}, any moment`;
}
