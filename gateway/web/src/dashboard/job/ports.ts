// What a running job listens on, opened in a window of its own: by its owner and admins.

import { h, show, write } from "../../dom.ts";
import type { Attempt, Job } from "../../generated/messages.ts";
import { mayChange } from "../person.ts";
import { choice, section } from "./parts.ts";
import { addressOfPort, readPort } from "./port-words.ts";

export class Ports {
  readonly element: HTMLElement;
  private readonly port = h("input", { id: "job-port", inputmode: "numeric", autocomplete: "off", placeholder: "8888", "aria-describedby": "job-port-wrong" });
  private readonly ranks = choice("Of rank", () => undefined);
  private readonly wrong = h("p", { class: "wrong", id: "job-port-wrong", role: "alert" });

  constructor(private readonly id: number) {
    const form = h("form", { class: "controls", onsubmit: (event) => this.open(event) },
      h("label", { class: "choice" }, h("span", {}, "Port"), this.port), this.ranks.element, h("button", { class: "quiet" }, "Open"));
    const hint = h("p", { class: "hint" }, `What it serves over HTTP, in a window of its own. Without a browser: gpuctl forward ${id} PORT`);
    this.element = section("ports", "Ports", form, this.wrong, hint);
    for (const each of [this.element, this.ranks.element]) show(each, false);
  }

  update(job: Job, attempt: Attempt | undefined): void {
    show(this.element, job.state === "JOB_STATE_RUNNING" && mayChange(job.user));
    this.ranks.offer((attempt?.ranks ?? []).map(({ rank }): [string, string] => [String(rank), String(rank)]));
  }

  private open(event: Event): void {
    event.preventDefault();
    const port = readPort(this.port.value);
    write(this.wrong, port === undefined ? "A port is a whole number from 1 to 65535, such as 8888." : "");
    if (port === undefined) this.port.focus();
    else open(addressOfPort(this.id, port, Number(this.ranks.select.value)), "_blank", "noopener");
  }
}
