// Drain or resume a node: with a reason for those who wonder.

import { h, show, write } from "../../dom.ts";
import { CallError, call } from "../api.ts";
import { showToast } from "../toast.ts";
import { sentence } from "../words.ts";

/** Resume it at once, or ask why it is to be drained. */
export function changeNode(node: string, isDraining: boolean): void {
  if (isDraining) askWhy(node);
  else void send(node, false, "").catch((error: unknown) => showToast(wordsOf(error)));
}

async function send(node: string, isDraining: boolean, reason: string): Promise<void> {
  await call("UpdateNode", { node, is_draining: isDraining, reason });
  showToast(isDraining ? `${node} drains: what runs goes on, nothing new starts.` : `${node} takes jobs again.`);
}

function askWhy(node: string): void {
  const why = h("input", { id: "drain-reason", maxlength: "200", placeholder: "maintenance, a new driver …", autocomplete: "off" });
  const error = h("p", { class: "wrong", role: "alert", hidden: true });
  const button = h("button", { class: "primary", type: "submit" }, "Drain");
  const close = h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Leave it");
  const form = h(
    "form",
    {},
    h("h2", { id: "drain-title" }, `Drain ${node}`),
    h("p", { class: "hint" }, "What runs there goes on to its end; nothing new starts until you resume it."),
    h("label", { for: "drain-reason" }, "Reason"),
    why,
    error,
    h("div", { class: "buttons" }, button, close),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true;
    void send(node, true, why.value.trim())
      .then(() => dialog.close())
      .catch((problem: unknown) => {
        write(error, wordsOf(problem));
        show(error, true);
      })
      .finally(() => {
        button.disabled = false;
      });
  });
  const dialog = h("dialog", { class: "actions", "aria-labelledby": "drain-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function wordsOf(error: unknown): string {
  if (!(error instanceof CallError)) return "That did not work.";
  return `${sentence(error.problem.message)} ${sentence(error.problem.next_step)}`;
}
