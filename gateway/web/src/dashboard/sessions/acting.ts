// End a session, drain a worker: asked first, with a reason for those who wonder.

import { h, show, write } from "../../dom.ts";
import type { Session, WorkerInfo } from "../../generated/messages.ts";
import { call } from "../api.ts";
import { problemWords } from "../job/parts.ts";
import { showToast } from "../toast.ts";

/** `done` is called once it is so. */
export function endSession(session: Session, done: () => void): void {
  ask({
    title: `End session ${session.id}`,
    hint: `Its person sees who ended it, and the reason. ${session.place > 0 ? "They lose their place in the line." : "Their turn ends at once."}`,
    button: "End it",
    act: (reason) => call("CloseSession", { id: session.id, reason }),
    told: `Session ${session.id} is ended.`,
    done,
  });
}

export function drainWorker(model: string, worker: WorkerInfo, done: () => void): void {
  const name = worker.name || `job ${String(worker.job_id)}`;
  ask({
    title: `Drain ${name}`,
    hint: "Who has a turn there keeps it to its end; nobody else is called to it, and then it ends. Where people need it, another worker is started.",
    button: "Drain",
    act: (reason) => call("DrainWorker", { model, worker_start: worker.worker_start, job_id: worker.job_id, reason }),
    told: `${name} drains.`,
    done,
  });
}

interface Asked {
  readonly title: string;
  readonly hint: string;
  readonly button: string;
  readonly told: string;
  act(reason: string): Promise<unknown>;
  done(): void;
}

function ask(asked: Asked): void {
  const why = h("input", { id: "why", maxlength: "200", autocomplete: "off" });
  const error = h("p", { class: "wrong", role: "alert", hidden: true });
  const button = h("button", { class: "primary", type: "submit" }, asked.button);
  const close = h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Leave it");
  const form = h("form", {}, h("h2", { id: "asked-title" }, asked.title), h("p", { class: "hint" }, asked.hint),
    h("label", { for: "why" }, "Reason"), why, error, h("div", { class: "buttons" }, button, close));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true;
    asked.act(why.value.trim())
      .then(() => {
        dialog.close();
        showToast(asked.told);
        asked.done();
      })
      .catch((problem: unknown) => {
        write(error, problemWords(problem));
        show(error, true);
      })
      .finally(() => {
        button.disabled = false;
      });
  });
  const dialog = h("dialog", { class: "actions", "aria-labelledby": "asked-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
