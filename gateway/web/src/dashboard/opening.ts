// On the way to a program's own host: who is logged in here is let in there.

import { h, write } from "../dom.ts";
import { CallError, enterProgram } from "./api.ts";
import { sentence } from "./login.ts";

/** The way of a program's host: "NAME/STATE/PATH". */
export function show(place: HTMLElement, parameter: string, until: AbortSignal): void {
  const [name = "", state = "", ...path] = parameter.split("/");
  const line = h("p", { role: "status" }, "You are logged in here; the program is told who you are.");
  place.append(h("h1", { tabindex: "-1" }, `Opening ${name}`), line);
  void open();

  async function open(): Promise<void> {
    try {
      const { address } = await enterProgram(name, state, `/${path.join("/")}`);
      // This page is not gone back to: it would lead to the program again.
      if (!until.aborted) location.replace(address);
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      write(line, `${sentence(error.problem.message)} ${sentence(error.problem.next_step)}`);
    }
  }
}
