// The fields of the form, each with its label, a hint, and the place where what is wrong is said.

import { h, show, write } from "../../dom.ts";
import type { GpuMode } from "../../generated/messages.ts";
import { bandWithin, bands } from "../person.ts";
import { word } from "../words.ts";
import { EMPTY, type Draft, type Field, type Wrong } from "./draft.ts";

type Input = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

interface Plan {
  readonly field: Field;
  readonly label: string;
  readonly hint?: string;
  readonly kind?: "text" | "lines" | "number" | "check" | "band" | "mode";
  readonly placeholder?: string;
}

const FIRST: readonly Plan[] = [
  { field: "command", label: "Command", kind: "lines", placeholder: "python train.py --epochs 10", hint: "A line for the shell of the node." },
  { field: "cwd", label: "Working directory", placeholder: "/home/ann/work", hint: "It must exist on the node." },
];
const NEEDS: readonly Plan[] = [
  { field: "gpus", label: "GPUs", kind: "number", hint: "0 for none." },
  { field: "gpu_mode", label: "GPU mode", kind: "mode", hint: "Preferred: none, rather than wait for long." },
  { field: "content_type", label: "Content type", placeholder: "audio/mpeg", hint: "Of what it works on; auto goes by it." },
  { field: "min_memory", label: "Memory of each GPU", placeholder: "8GB", hint: "That must be free." },
  { field: "model", label: "GPU model", placeholder: "h100, a100", hint: "A part of its name; empty for any." },
  { field: "time_limit", label: "Time limit", placeholder: "4h", hint: "With one it may go ahead of longer jobs." },
];
const MORE: readonly Plan[] = [
  { field: "name", label: "Name", placeholder: "by its command" },
  { field: "band", label: "Band", kind: "band" },
  { field: "nodes", label: "Nodes", kind: "number", hint: "Empty: as few as it needs." },
  { field: "cpus", label: "CPUs on each node", kind: "number", hint: "1 if empty." },
  { field: "memory", label: "Host memory on each node", placeholder: "32GB" },
  { field: "env", label: "Environment", kind: "lines", placeholder: "NAME=VALUE, one a line" },
  { field: "is_preemptible", label: "A higher band may stop it and run it again later", kind: "check" },
  { field: "is_held", label: "Hold it until somebody releases it", kind: "check" },
];

const MODES: readonly (readonly [GpuMode, string])[] = [
  ["GPU_MODE_REQUIRED", "required"],
  ["GPU_MODE_PREFERRED", "preferred"],
  ["GPU_MODE_NEVER", "never"],
  ["GPU_MODE_AUTO", "auto"],
];

interface Shown {
  readonly input: Input;
  readonly wrong: HTMLElement;
}

export class Form {
  readonly root: HTMLFormElement;
  private readonly fields = new Map<Field, Shown>();
  private readonly further: HTMLDetailsElement;

  /** `changed` is called when somebody types, `sent` when they are done. */
  constructor(changed: () => void, sent: () => void, ...rest: HTMLElement[]) {
    const first = FIRST.map((each) => this.field(each));
    const needs = h("div", { class: "fields" }, ...NEEDS.map((each) => this.field(each)));
    const more = h("div", { class: "fields" }, ...MORE.map((each) => this.field(each)));
    this.further = h("details", { class: "further" }, h("summary", {}, "More: name, band, nodes, environment …"), more);
    this.root = h("form", { class: "submit-form", novalidate: true }, ...first, needs, this.further, ...rest);
    this.root.addEventListener("input", (event) => {
      this.clear(event.target as Input);
      changed();
    });
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      sent();
    });
    this.root.addEventListener("keydown", (event) => {
      // In a text of several lines Enter makes a new one: with Ctrl it sends, as elsewhere.
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) sent();
    });
    this.fill({ ...EMPTY, band: bandWithin(EMPTY.band) });
  }

  private field(plan: Plan): HTMLElement {
    const id = `field-${plan.field}`;
    const described = `${id}-wrong ${id}-hint`;
    const own = { id, name: plan.field, "aria-describedby": described, placeholder: plan.placeholder ?? "", autocomplete: "off", spellcheck: "false" };
    const input = inputOf(plan, own);
    const wrong = h("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
    this.fields.set(plan.field, { input, wrong });
    const hint = h("p", { class: "hint", id: `${id}-hint` }, plan.hint ?? "");
    show(hint, plan.hint !== undefined);
    if (plan.kind === "check") return h("div", { class: "field field-check" }, input, h("label", { for: id }, plan.label), wrong);
    return h("div", { class: `field field-${plan.field}` }, h("label", { for: id }, plan.label), input, wrong, hint);
  }

  get draft(): Draft {
    const said = [...this.fields].map(([field, { input }]) => [field, valueOf(input)]);
    return Object.fromEntries(said) as Draft;
  }

  fill(draft: Draft): void {
    for (const [field, { input }] of this.fields) {
      if (input instanceof HTMLInputElement && input.type === "checkbox") input.checked = draft[field] !== "";
      else input.value = draft[field];
    }
    this.complain({});
  }

  /** Say what is wrong at each field, and lead to the first one. */
  complain(wrong: Wrong): void {
    let first: Input | null = null;
    for (const [field, shown] of this.fields) {
      const why = wrong[field] ?? "";
      write(shown.wrong, why);
      show(shown.wrong, why !== "");
      if (why === "") shown.input.removeAttribute("aria-invalid");
      else shown.input.setAttribute("aria-invalid", "true");
      if (why !== "") first ??= shown.input;
    }
    if (first === null) return;
    if (this.further.contains(first)) this.further.open = true;
    first.focus();
  }

  /** Open what is folded, where a job that is filled in says something there. */
  unfold(): void {
    const { name: _, ...rest } = this.draft;
    this.further.open = MORE.some(({ field }) => field !== "name" && rest[field as keyof typeof rest] !== EMPTY[field]);
  }

  private clear(input: Input): void {
    for (const shown of this.fields.values()) {
      if (shown.input !== input) continue;
      show(shown.wrong, false);
      write(shown.wrong, "");
      input.removeAttribute("aria-invalid");
    }
  }
}

function inputOf(plan: Plan, own: Record<string, string>): Input {
  switch (plan.kind) {
    case "lines":
      return h("textarea", { ...own, rows: plan.field === "command" ? "3" : "4" });
    case "number":
      return h("input", { ...own, inputmode: "numeric" });
    case "check":
      return h("input", { id: own["id"] ?? "", name: plan.field, type: "checkbox", "aria-describedby": `field-${plan.field}-wrong` });
    case "band":
      return h("select", { id: own["id"] ?? "", name: plan.field }, ...bands().map((each) => h("option", { value: each }, word(each))));
    case "mode":
      return h("select", { id: own["id"] ?? "", name: plan.field, "aria-describedby": own["aria-describedby"] ?? "" }, ...MODES.map(([value, words]) => h("option", { value }, words)));
    default:
      return h("input", own);
  }
}

function valueOf(input: Input): string {
  if (input instanceof HTMLInputElement && input.type === "checkbox") return input.checked ? "yes" : "";
  return input.value;
}
