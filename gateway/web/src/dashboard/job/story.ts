// What happened to a job, oldest first; it grows as things happen.

import { h, show, write } from "../../dom.ts";
import type { StoryLine } from "../../generated/messages.ts";
import { call } from "../api.ts";
import { time, whole } from "../values.ts";
import { paced } from "./pace.ts";
import { problemWords, section } from "./parts.ts";
import { clockWords, lasted } from "./words.ts";

const READ_MS = 1_000;
const PAGE = 1_000;
/** Lines that are shown: the newest. `gpuctl story` has them all. */
export const LINES_MAX = 300;

export class Story {
  readonly element: HTMLElement;
  private readonly list = h("ol", { class: "timeline" });
  private readonly note = h("p", { class: "hint" });
  private readonly ask: () => void;
  /** The page that is being filled: what stands before it is complete and is not read again. */
  private page = "";
  private before: readonly StoryLine[] = [];
  private dropped = 0;

  constructor(private readonly id: number, until: AbortSignal) {
    this.element = section("story", "What happened", this.note, this.list);
    show(this.note, false);
    this.ask = paced(() => this.read(), READ_MS, until);
  }

  /** Something has changed. */
  update(): void {
    this.ask();
  }

  private async read(): Promise<void> {
    try {
      for (;;) {
        const { lines, next_page_token: next } = await call("GetStory", { job_id: String(this.id), page_size: PAGE, page_token: this.page });
        this.fill([...this.before, ...lines]);
        if (next === "") return;
        this.before = this.kept([...this.before, ...lines]);
        this.page = next;
      }
    } catch (problem) {
      this.say(problemWords(problem));
    }
  }

  private kept(lines: readonly StoryLine[]): readonly StoryLine[] {
    this.dropped += Math.max(0, lines.length - LINES_MAX);
    return lines.slice(-LINES_MAX);
  }

  private fill(lines: readonly StoryLine[]): void {
    const shown = lines.slice(-LINES_MAX);
    const earlier = this.dropped + lines.length - shown.length;
    this.say(earlier > 0 ? `${earlier.toLocaleString("en")} earlier lines: gpuctl story ${this.id}` : "");
    const known = new Map([...this.list.children].map((each) => [(each as HTMLElement).dataset["sequence"], each]));
    const now = Date.now() / 1_000;
    this.list.replaceChildren(...shown.map((line, index) => {
      const key = `${whole(line.sequence)}/${line.kind}/${line.sentence}`;
      return known.get(key) ?? item(line, key, now, time(shown[index - 1]?.time));
    }));
  }

  private say(words: string): void {
    write(this.note, words);
    show(this.note, words !== "");
  }
}

function item({ time: at, kind, sentence: said }: StoryLine, key: string, now: number, before: number | undefined): HTMLElement {
  const then = time(at) ?? 0;
  const later = before === undefined || then - before < 0.05 ? "" : `+${lasted(then - before)}`;
  return h("li", { "data-kind": kind, "data-sequence": key, class: toneOf(kind) },
    h("time", { datetime: at ?? "" }, clockWords(then, now)), h("span", { class: "later hint" }, later), h("span", { class: "said" }, said));
}

/** What makes a line stand out: records by their names (scheduler/state/records.py). */
const TONES: Readonly<Record<string, string>> = {
  AttemptPlaced: "go", AttemptStarted: "go", JobFinished: "end",
  AttemptUnreachable: "turn", AttemptVoided: "turn", AttemptStopping: "turn", JobWarned: "turn", JobHeld: "turn",
};

function toneOf(kind: string): string {
  return TONES[kind] ?? "";
}
