// What came of something that a person did: said once, to eyes and ears, and gone after a while.

import { h, show, write } from "../dom.ts";
import type { Liveness, Problem } from "./api.ts";
import { sentence } from "./words.ts";

/** Whether a stream has ended for good, said where its view says how things are. */
export function onEnd(place: HTMLElement): (state: Liveness, problem: Problem | null) => void {
  return (state, problem) => {
    if (state === "ended" && problem !== null) write(place, `${sentence(problem.message)} ${sentence(problem.next_step)}`);
  };
}

const SHOWN_MS = 8_000;

const place = h("div", { class: "toast", role: "status" });
const words = h("p", {});
place.append(words);
show(words, false);
let timer: ReturnType<typeof setTimeout> | undefined;

/** The place where it is said; the shell puts it on the page. */
export function toastPlace(): HTMLElement {
  return place;
}

export function showToast(text: string): void {
  clearTimeout(timer);
  write(words, text);
  show(words, true);
  timer = setTimeout(() => {
    show(words, false);
    write(words, "");
  }, SHOWN_MS);
}
