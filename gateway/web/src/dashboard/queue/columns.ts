// What the queue shows of each job, running or waiting.

import { show, write } from "../../dom.ts";
import type { Job } from "../../generated/messages.ts";
import { askActions, hasActions } from "../actions.ts";
import { addressOf } from "../router.ts";
import { part, say, type Column } from "../rows.ts";
import { now } from "../time.ts";
import { ABSENT, between, blockedWords, clock, gpusAsked, itemsInWords, lasting, likely, placeOf, secondsOf, sentence, setupWords, toneOf, word } from "../words.ts";

/** The job's number and name, which lead to its page. */
export const NAME: Column<Job> = {
  key: "name",
  title: "Job",
  fill(cell, job) {
    const link = part(cell, "link", "a");
    const address = addressOf("job", job.id);
    if (link.getAttribute("href") !== address) link.href = address;
    write(part(link, "id", "b"), `#${job.id}`);
    write(part(link, "name", "span"), ` ${job.spec.name}`);
  },
};

export const USER: Column<Job> = { key: "user", title: "User", fill: (cell, job) => write(cell, job.user) };

const GPUS: Column<Job> = { key: "gpus", title: "GPUs", fill: (cell, job) => write(cell, gpusAsked(job.spec) || ABSENT) };

const BAND: Column<Job> = { key: "band", title: "Band", fill: (cell, job) => write(cell, word(job.spec.band)) };

const STATE: Column<Job> = {
  key: "state",
  title: "State",
  fill(cell, job) {
    const badge = part(cell, "badge", "span", { class: "badge" });
    write(badge, word(job.state));
    badge.dataset["tone"] = toneOf(job.state);
  },
};

const WHERE: Column<Job> = {
  key: "where",
  title: "Where",
  fill(cell, job) {
    const attempt = job.attempts.at(-1);
    const place = job.array_counts === undefined ? placeOf(attempt) : itemsInWords(job.array_counts);
    say(cell, "place", place || ABSENT);
    say(cell, "setup", setupWords(job), "of");
    say(cell, "blocked", blockedWords(job), "warned");
    say(cell, "unreachable", attempt?.is_unreachable === true ? "its node is not heard" : "", "warned");
    say(cell, "warning", sentence(job.warnings.at(-1)?.sentence ?? ""), "warned");
  },
};

/** How long it has run, and of how much. */
const RUNS: Column<Job> = {
  key: "time",
  title: "Time",
  fill(cell, job) {
    const limit = secondsOf(job.spec.time_limit);
    const ran = job.start_time === undefined ? "starting" : lasting(between(job.start_time, now()));
    say(cell, "ran", ran);
    say(cell, "limit", limit > 0 ? `of ${lasting(limit)}` : "no limit", "of");
  },
};

const PLACE: Column<Job> = {
  key: "place",
  title: "Place",
  fill: (cell, job) => write(cell, job.queue_position > 0 ? String(job.queue_position) : ABSENT),
};

const WHY: Column<Job> = {
  key: "why",
  title: "Why it waits",
  fill(cell, job) {
    const isHeld = job.state === "JOB_STATE_HELD";
    const badge = part(cell, "badge", "span", { class: "badge" });
    write(badge, isHeld ? "held" : "");
    badge.dataset["tone"] = "busy";
    show(badge, isHeld);
    const items = job.array_counts === undefined ? "" : `${itemsInWords(job.array_counts)}. `;
    const why = job.wait_reason?.sentence || (isHeld ? "somebody holds it" : "");
    say(cell, "why", `${items}${sentence(why)}`);
    say(cell, "blocked", blockedWords(job), "warned");
    // With a latest start it says what made it later; without one, why there is none.
    say(cell, "bound", job.latest_start_time === undefined ? "" : sentence(job.bound_sentence), "of");
  },
};

const STARTS: Column<Job> = {
  key: "starts",
  title: "Starts",
  fill(cell, job) {
    const { estimated_start_time: about, latest_start_time: latest } = job;
    const isHeld = job.state === "JOB_STATE_HELD";
    const unknown = latest !== undefined ? "" : isHeld ? ABSENT : "not known";
    say(cell, "about", about === undefined ? unknown : `about ${when(about)}`);
    say(cell, "likely", likely(job, now()), "of");
    say(cell, "latest", latest === undefined ? "" : `by ${when(latest)} at the latest`, "of");
    const why = latest === undefined ? job.bound_sentence : "";
    say(cell, "none", isHeld ? "" : sentence(why), "of");
  },
};

/** "14:05, in 12 min". */
function when(time: string): string {
  const at = Date.parse(time);
  const seconds = (at - now()) / 1_000;
  return seconds < 1 ? "now" : `${clock(at, now())}, in ${lasting(seconds)}`;
}

const WAITED: Column<Job> = { key: "time", title: "Waited", fill: (cell, job) => write(cell, lasting(between(job.submit_time, now()))) };

export const ACTIONS: Column<Job> = {
  key: "actions",
  title: "Actions",
  fill(cell, job) {
    const open = () => askActions(current.get(cell) ?? job);
    const button = part(cell, "button", "button", { class: "quiet small", onclick: open });
    current.set(cell, job);
    write(button, "Change");
    if (button.getAttribute("aria-label") !== `Change job ${job.id}`) button.setAttribute("aria-label", `Change job ${job.id}`);
    show(button, hasActions(job));
  },
};

/** The job of each cell with a button, as it is now. */
const current = new WeakMap<HTMLElement, Job>();

export const RUNNING: readonly Column<Job>[] = [NAME, USER, STATE, GPUS, WHERE, RUNS, ACTIONS];
export const WAITING: readonly Column<Job>[] = [PLACE, NAME, USER, GPUS, BAND, WHY, STARTS, WAITED, ACTIONS];

