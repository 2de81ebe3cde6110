// Submit a job: the form, what the scheduler would do with it, and only then the job. "#/submit/12" fills in job 12.

import { h, show as setShown, write } from "../dom.ts";
import type { JobSpec, Partly } from "../generated/messages.ts";
import { CallError, call, type Problem } from "./api.ts";
import { bandWithin, maySubmit, user } from "./person.ts";
import { addressOf } from "./router.ts";
import { draftOf, fieldOf, keptOf, requestId, specOf, withoutHidden, type Draft, type Wrong } from "./submit/draft.ts";
import { Form } from "./submit/form.ts";
import { showToast } from "./toast.ts";
import { sentence, word } from "./words.ts";

const CHECKS = "Check tells what would happen, and changes nothing.";

export function show(place: HTMLElement, parameter: string, until: AbortSignal): void {
  if (!maySubmit()) {
    const why = "Your token is a viewer's: it may look, and not submit. Ask an admin for one of role user.";
    place.append(h("h1", { tabindex: "-1" }, "Submit a job"), h("p", { class: "trouble" }, why));
    return;
  }
  new Submitting(place, until).begin(parameter);
}

class Submitting {
  private readonly until: AbortSignal;
  private readonly lead = h("p", { class: "lead" });
  private readonly trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  private readonly foretold = h("section", { class: "foretold", role: "status", "aria-label": "What would happen" });
  private readonly button = h("button", { class: "primary", type: "submit" }, "Check");
  private readonly form: Form;
  private like: JobSpec | null = null;
  /** The spec that was checked as it stands, and the id under which it is sent, again too. */
  private checked: { readonly spec: Partly<JobSpec>; readonly id: string } | null = null;
  private isBusy = false;
  private readonly hint = h("p", { class: "hint" }, CHECKS);

  constructor(place: HTMLElement, until: AbortSignal) {
    this.until = until;
    this.form = new Form(() => this.changed(), () => void this.send(), this.trouble, this.foretold, h("div", { class: "buttons" }, this.button, this.hint));
    place.append(h("h1", { tabindex: "-1" }, "Submit a job"), this.lead, this.form.root);
    setShown(this.lead, false);
    setShown(this.foretold, false);
  }

  begin(parameter: string): void {
    if (/^\d+$/.test(parameter)) void this.fillLike(parameter);
    else void this.fillFolder();
  }

  /** The form as that job was submitted. */
  private async fillLike(id: string): Promise<void> {
    try {
      const { job } = await call("GetJob", { job_id: id });
      if (this.until.aborted) return;
      const spec = withoutHidden(job.spec);
      this.like = spec;
      const kept = keptOf(spec);
      const also = kept.length === 0 ? "" : ` Kept as they were, too: ${kept.join(", ")}.`;
      const draft = draftOf(spec);
      const band = bandWithin(draft.band);
      const hidden = job.spec.hidden_fields.length === 0 ? "" : " Variables and whom it tells are not shown to others, and left out here.";
      const moved = band === draft.band ? "" : ` Its band is ${word(draft.band)}, which you do not have: this one is ${word(band)}.`;
      write(this.lead, `Filled in from job ${id} of ${job.user}.${hidden}${also}${moved}`);
      setShown(this.lead, true);
      this.form.fill({ ...draft, band });
      this.form.unfold();
    } catch (error) {
      this.refuse(error);
    }
  }

  /** An empty form, with the folder of one's newest job. */
  private async fillFolder(): Promise<void> {
    const request = { user: user(), include_finished: true, page_size: 1, omit_env: true };
    try {
      const { jobs } = await call("Queue", request);
      const draft = this.form.draft;
      const cwd = jobs[0]?.spec.cwd ?? "";
      if (!this.until.aborted && draft.cwd === "") this.form.fill({ ...draft, cwd });
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      // It was only to save typing.
    }
  }

  private changed(): void {
    this.checked = null;
    write(this.button, "Check");
    write(this.hint, CHECKS);
    setShown(this.foretold, false);
    setShown(this.trouble, false);
  }

  private async send(): Promise<void> {
    if (this.isBusy) return;
    setShown(this.trouble, false);
    this.become(true);
    try {
      if (this.checked === null) await this.check();
      else await this.submit(this.checked.spec, this.checked.id);
    } catch (error) {
      this.refuse(error);
    } finally {
      this.become(false);
    }
  }

  private become(isBusy: boolean): void {
    this.isBusy = isBusy;
    this.button.setAttribute("aria-disabled", String(isBusy));
  }

  private async check(): Promise<void> {
    const draft: Draft = this.form.draft;
    const read = specOf(draft, this.like);
    if ("wrong" in read) {
      this.form.complain(read.wrong);
      return;
    }
    const answer = await call("Submit", { specs: [read.spec], dry_run: true });
    this.form.complain({});
    this.checked = { spec: read.spec, id: requestId() };
    const why = sentence(answer.job.wait_reason?.sentence ?? "");
    const notes = answer.notes.map((note) => h("p", {}, sentence(note)));
    this.foretold.replaceChildren(h("h2", {}, "It would be accepted"), h("p", {}, why), ...notes);
    setShown(this.foretold, true);
    write(this.button, "Submit the job");
    write(this.hint, "Nothing is submitted yet.");
  }

  private async submit(spec: Partly<JobSpec>, id: string): Promise<void> {
    const answer = await call("Submit", { specs: [spec], request_id: id });
    showToast(`Job ${answer.first_job_id} is submitted.`);
    location.hash = addressOf("job", answer.first_job_id);
  }

  private refuse(error: unknown): void {
    if (this.until.aborted) return;
    if (!(error instanceof CallError)) throw error;
    const wrong = wrongIn(error.problem);
    if (Object.keys(wrong).length > 0) {
      this.form.complain(wrong);
      return;
    }
    write(this.trouble, `${sentence(error.problem.message)} ${sentence(error.problem.next_step)}`);
    setShown(this.trouble, true);
  }
}

/** What the scheduler says of fields that the form has. */
function wrongIn(problem: Problem): Wrong {
  const wrong: Wrong = {};
  for (const { field, why } of problem.fields ?? []) {
    const own = fieldOf(field);
    if (own !== null) wrong[own] = sentence(why);
  }
  return wrong;
}
