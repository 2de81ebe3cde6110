// What may be done to a job: a dialog with the actions that its state and the person's role allow.

import { h, show, write } from "../dom.ts";
import type { Band, Calls, FieldMask, Job, Partly, UpdateJobRequest } from "../generated/messages.ts";
import { CallError, call } from "./api.ts";
import { bands, mayChange, maySubmit } from "./person.ts";
import { addressOf } from "./router.ts";
import { showToast } from "./toast.ts";
import { hasEnded, isWaiting, sentence, word } from "./words.ts";

/** Whether there is anything that this person may do to the job. */
export function hasActions(job: Job): boolean {
  return maySubmit() && (mayChange(job.user) || hasEnded(job.state));
}

/** Ask what is to be done to a job, and do it. */
export function askActions(job: Job): void {
  new Actions(job).open();
}

class Actions {
  private readonly job: Job;
  private readonly dialog: HTMLDialogElement;
  private readonly error = h("p", { class: "wrong", role: "alert" });
  private readonly buttons: HTMLButtonElement[] = [];

  constructor(job: Job) {
    this.job = job;
    const heading = h("h2", { id: "actions-title", tabindex: "-1" }, `Job ${job.id} · ${job.spec.name}`);
    const close = h("button", { class: "quiet", type: "button", onclick: () => this.dialog.close() }, "Close");
    const state = h("p", { class: "hint" }, `${job.user} · ${word(job.state)}`);
    const like = h("a", { class: "button quiet", href: addressOf("submit", job.id) }, "Submit one like it");
    like.addEventListener("click", () => this.dialog.close());
    this.dialog = h("dialog", { class: "actions", "aria-labelledby": "actions-title" }, heading, state, ...this.parts(), this.error);
    this.dialog.append(h("div", { class: "buttons" }, ...(maySubmit() && job.spec.serves === "" ? [like] : []), close));
    show(this.error, false);
  }

  open(): void {
    document.body.append(this.dialog);
    this.dialog.addEventListener("close", () => this.dialog.remove());
    // A press beside it closes it, as Escape does.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.dialog.showModal();
  }

  private parts(): HTMLElement[] {
    const { job } = this;
    if (!mayChange(job.user) || hasEnded(job.state)) return [];
    const found: HTMLElement[] = [];
    if (isWaiting(job.state)) {
      const isHeld = job.state === "JOB_STATE_HELD";
      const hold = this.button(isHeld ? "Release" : "Hold", "quiet", () => this.update("isHeld", { is_held: !isHeld }));
      const words = isHeld ? "It waits until somebody releases it." : "It waits, and keeps its submit time.";
      found.push(h("section", {}, hold, h("span", { class: "hint" }, words)), this.bands());
    } else {
      const again = this.button("Requeue", "quiet", () => this.send("RequeueJob", { reason: "from the dashboard" }));
      found.push(h("section", {}, again, h("span", { class: "hint" }, "It is stopped, and runs again from its beginning.")));
    }
    found.push(this.cancelling());
    return found;
  }

  private bands(): HTMLElement {
    const own = bands();
    const present = this.job.spec.band;
    // One that they do not have is told as the present one, and cannot be chosen.
    const also = own.includes(present) ? [] : [h("option", { value: present, disabled: true }, word(present))];
    const choice = h("select", { id: "action-band" }, ...own.map((each) => h("option", { value: each }, word(each))), ...also);
    choice.value = present;
    const move = this.button("Move", "quiet", () => this.update("band", { band: choice.value as Band }));
    return h("section", {}, h("label", { for: "action-band" }, "Band"), choice, move);
  }

  private cancelling(): HTMLElement {
    const why = h("input", { id: "action-reason", maxlength: "200", placeholder: "why, if anybody should know", autocomplete: "off" });
    const cancel = this.button("Cancel the job", "danger", () => this.send("Cancel", { reason: why.value.trim() }));
    return h("section", {}, h("label", { for: "action-reason", class: "unseen" }, "Reason"), why, cancel);
  }

  private button(text: string, kind: string, act: () => Promise<void>): HTMLButtonElement {
    const button = h("button", { class: kind, type: "button", onclick: () => void act() }, text);
    this.buttons.push(button);
    return button;
  }

  private update(mask: FieldMask, fields: Partly<UpdateJobRequest>): Promise<void> {
    return this.send("UpdateJob", { update_mask: mask, ...fields });
  }

  private async send<Name extends "Cancel" | "RequeueJob" | "UpdateJob">(method: Name, request: Partly<Calls[Name]["request"]>): Promise<void> {
    for (const button of this.buttons) button.disabled = true;
    try {
      const answer = await call(method, { jobs: { job_ids: [this.job.id] }, ...request });
      showToast(sentence(answer.changes[0]?.message ?? ""));
      this.dialog.close();
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      write(this.error, `${sentence(error.problem.message)} ${sentence(error.problem.next_step)}`);
      show(this.error, true);
    } finally {
      for (const button of this.buttons) button.disabled = false;
    }
  }
}
