// The head of a job's page: what it is, whose, where, since when, and how it ended.

import { h, show, write } from "../../dom.ts";
import type { Attempt, Job } from "../../generated/messages.ts";
import { askActions, hasActions } from "../actions.ts";
import { addressOf } from "../router.ts";
import { seconds, time, whole } from "../values.ts";
import { blockedWords, hasEnded, isWaiting, sentence, setupWords, toneOf, word } from "../words.ts";
import { Facts, jobLink, nodeLink, type Content } from "./parts.ts";
import { atLimitWords, clockWords, commandWords, endWords, gpuChoiceWords, lasted, listed, processWords, requestWords, resultsWords, size } from "./words.ts";

/** Labels beyond these are not shown here. */
const LABELS_MAX = 20;

export class Head {
  readonly element: HTMLElement;
  private readonly actions = h("button", { class: "quiet", onclick: () => this.job && askActions(this.job) }, "Actions …");
  private readonly title = h("h1", { tabindex: "-1" });
  private readonly state = h("span", { class: "badge" });
  private readonly end = h("p", { class: "end" });
  private readonly command = h("code", { class: "command", tabindex: "0", "aria-label": "Command" });
  private readonly warnings = h("ul", { class: "warnings", "aria-label": "Warnings" });
  private readonly facts = new Facts();
  private job: Job | undefined;

  constructor(id: number) {
    write(this.title, `Job ${id}`);
    this.element = h("div", { class: "job-head" },
      h("div", { class: "job-title" }, this.title, this.state, this.actions), this.end, this.warnings, this.command, this.facts.element);
    for (const each of [this.end, this.warnings, this.actions]) show(each, false);
  }

  /** `attempt`: the one that is looked at; undefined before the first. */
  update(job: Job, attempt: Attempt | undefined, now: number): void {
    this.job = job;
    show(this.actions, hasActions(job));
    write(this.title, `Job ${job.id}: ${job.spec.name}`);
    write(this.state, word(job.state));
    this.state.dataset["tone"] = toneOf(job.state);
    const end = hasEnded(job.state) ? sentence(endWords(job)) : attempt?.is_unreachable ? "Its node has not been heard for a while; it may still run." : "";
    write(this.end, end);
    show(this.end, end !== "");
    write(this.command, commandWords(job.spec.argv));
    this.warn(job, now);
    this.tell(job, attempt, now);
  }

  private warn(job: Job, now: number): void {
    const { warnings } = job;
    const blocked = blockedWords(job);
    const setup = setupWords(job);
    const told = JSON.stringify([setup, blocked, warnings]);
    if (this.warnings.dataset["told"] === told) return;
    this.warnings.dataset["told"] = told;
    show(this.warnings, setup !== "" || blocked !== "" || warnings.length > 0);
    const first = blocked === "" ? [] : [h("li", { "data-kind": "OUTPUT_BLOCKED" }, blocked)];
    if (setup !== "") first.unshift(h("li", { "data-kind": "SETTING_UP" }, setup));
    this.warnings.replaceChildren(...first, ...warnings.map(({ kind, sentence, time: at }) => {
      const noticed = time(at);
      return h("li", { "data-kind": kind }, sentence, ...(noticed === undefined ? [] : [" ", h("span", { class: "hint" }, clockWords(noticed, now))]));
    }));
  }

  private tell(job: Job, attempt: Attempt | undefined, now: number): void {
    const { facts } = this;
    const { spec } = job;
    facts.set("User", job.user);
    facts.set("Band", word(spec.band));
    facts.set("Asked for", requestWords(spec));
    facts.set("GPUs are", gpuChoiceWords(job.gpu_choice));
    const started = time(attempt?.start_time ?? job.start_time);
    const ended = time(attempt?.end_time ?? job.end_time);
    const eitherOf = (running: string, over: string, content: Content): void => {
      facts.set(running, ended === undefined ? content : undefined);
      facts.set(over, ended === undefined ? undefined : content);
    };
    eitherOf("Runs on", "Ran on", attempt === undefined ? undefined : places(attempt));
    facts.set("Submitted", when(time(job.submit_time), now));
    facts.set("Started", when(time(job.start_time), now));
    facts.set("Ended", when(time(job.end_time), now));
    const limit = seconds(spec.time_limit);
    eitherOf("Runs for", "Ran for", started === undefined ? undefined : ran(started, ended ?? now, ended === undefined ? limit : undefined));
    facts.set("Waits for", isWaiting(job.state) ? lasted(now - (time(job.submit_time) ?? now)) : undefined);
    facts.set("Results", resultsWords(job) || undefined);
    facts.set("Time limit", limit === undefined ? undefined : lasted(limit));
    facts.set("At its limit", atLimitWords(spec));
    const runs = job.run_count ?? job.attempt_count;
    const later = job.attempts.length - 1 - job.attempts.findIndex((each) => each.number === attempt?.number);
    facts.set("Attempt", runs > 1 ? `${attempt === undefined ? runs : runs - later} of ${runs}` : undefined);
    facts.set("CPUs", `${Math.max(1, spec.cpus)}${whole(spec.memory_bytes) > 0 ? `, ${size(spec.memory_bytes)} of memory` : ""}`);
    facts.set("Processes", processWords(spec.process));
    facts.set("Folder", spec.cwd);
    facts.set("Submitted from", spec.submit_cwd === spec.cwd ? undefined : spec.submit_cwd);
    facts.set("Copy of its output", spec.output_file);
    facts.set("Worker of", spec.serves);
    facts.set("Item of", whole(job.array_id) > 0 ? h("span", {}, jobLink(job.array_id, `array ${job.array_id}`), `, index ${job.array_index}`) : undefined);
    facts.set("Indices", spec.array === undefined ? undefined : spec.array.indices + (spec.array.max_active_count > 0 ? `, at most ${spec.array.max_active_count} at once` : ""));
    facts.set("After", spec.after.length === 0 ? undefined : h("span", {}, ...spec.after.flatMap((each, index) => [index > 0 ? ", " : "", jobLink(each.job_id)])));
    const labels = Object.entries(spec.labels).slice(0, LABELS_MAX).map(([key, value]) => (value === "" ? key : `${key}=${value}`));
    facts.set("Labels", labels.join(", "));
  }
}

function when(at: number | undefined, now: number): string | undefined {
  return at === undefined ? undefined : clockWords(at, now);
}

function ran(from: number, to: number, limit: number | undefined): string {
  const told = lasted(to - from);
  return limit === undefined ? told : `${told}, ${lasted(Math.max(0, from + limit - to))} left`;
}

function places(attempt: Attempt): Node {
  const parts = attempt.ranks.flatMap(({ node, device_indices: indices }, index) => [
    index > 0 ? "; " : "", nodeLink(node), indices.length === 0 ? ", no GPU" : `: GPU\u00a0${listed(indices)}`,
  ]);
  return h("span", {}, ...parts);
}

/** What stands in the place of a job that there is none of. */
export function missing(why: string): HTMLElement {
  return h("div", {}, h("h1", { tabindex: "-1" }, "No such job"), h("p", { class: "lead" }, why),
    h("p", {}, h("a", { href: addressOf("queue") }, "The queue"), " · ", h("a", { href: addressOf("finished") }, "Finished jobs")));
}
