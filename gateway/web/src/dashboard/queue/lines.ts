// The queue as it was told last: a page of it in its order, and each change as it comes. Values only.

import type { Job, QueueCounts } from "../../generated/messages.ts";
import { hasEnded, isWaiting } from "../words.ts";

export class Lines {
  private order: string[] = [];
  private readonly jobs = new Map<string, Job>();

  /** A page of the queue, in its order. */
  takePage(jobs: readonly Job[]): void {
    this.order = jobs.map((job) => job.id);
    this.jobs.clear();
    for (const job of jobs) this.jobs.set(job.id, job);
  }

  /** A change of one job. Answers whether the order, or the number of jobs, may be another one now. */
  takeJob(job: Job): boolean {
    const before = this.jobs.get(job.id);
    if (hasEnded(job.state)) {
      this.jobs.delete(job.id);
      this.order = this.order.filter((id) => id !== job.id);
      return true;
    }
    // A change does not tell its place: that of the last page stands until the next one.
    const place = isWaiting(job.state) ? (before?.queue_position ?? 0) : 0;
    this.jobs.set(job.id, { ...job, queue_position: place });
    if (before === undefined) this.order.push(job.id);
    return before === undefined || before.state !== job.state || before.spec.band !== job.spec.band;
  }

  /** Those that run, those that wait in their order; `user` "" is everybody. */
  split(user: string): { running: Job[]; waiting: Job[] } {
    const running: Job[] = [];
    const waiting: Job[] = [];
    for (const id of this.order) {
      const job = this.jobs.get(id);
      if (job === undefined || (user !== "" && job.user !== user)) continue;
      (isWaiting(job.state) ? waiting : running).push(job);
    }
    return { running, waiting };
  }

  get count(): number {
    return this.jobs.size;
  }
}

/** "3 running, 12 waiting, 1 held": the whole queue. */
export function countsInWords(counts: QueueCounts): string {
  const running = Number(counts.starting) + Number(counts.running) + Number(counts.stopping);
  const parts = [`${running.toLocaleString("en")} running`, `${Number(counts.queued).toLocaleString("en")} waiting`];
  if (Number(counts.held) > 0) parts.push(`${Number(counts.held).toLocaleString("en")} held`);
  return parts.join(" · ");
}

/** Live jobs in all. */
export function total(counts: QueueCounts): number {
  return [counts.queued, counts.held, counts.starting, counts.running, counts.stopping].reduce((sum, each) => sum + Number(each), 0);
}
