// The output of a job, live: as text with its colours, in the order in which it came, and never more than the page has room for.

import { h, show, write } from "../../dom.ts";
import type { Job, Partly, Stream, StreamOutputRequest, StreamOutputResponse } from "../../generated/messages.ts";
import { stream, type Liveness, type Problem } from "../api.ts";
import { whole } from "../values.ts";
import { hasEnded, sentence } from "../words.ts";
import type { Line } from "./colours.ts";
import { bytesOf, keyOf, LineReader, Positions } from "./lines.ts";
import { choice, section } from "./parts.ts";
import { LINES_MAX, Screen, type ShownLine } from "./screen.ts";
import { size } from "./words.ts";

/** A screen that is so near to its end follows what comes. In pixels. */
const NEAR_PX = 24;
/** How often new lines are shown, where a tab that is not seen gets no frames. */
const HIDDEN_MS = 500;

export class Output {
  readonly element: HTMLElement;
  private readonly list = h("div", { class: "lines" });
  private readonly pane = h("div", { class: "output-pane", role: "region", tabindex: "0", "aria-label": "Output of the job", onscroll: () => this.scrolled() }, this.list);
  private readonly follow = h("input", { type: "checkbox", checked: true, onchange: () => this.followed() });
  private readonly status = h("span", { class: "hint", role: "status" });
  private readonly above = h("p", { class: "hint" });
  private readonly empty = h("p", { class: "hint" }, "No output yet.");
  private readonly ranks = choice("Rank", () => this.restart());
  private readonly streams = choice("Stream", () => this.restart());
  private readonly screen = new Screen();
  private readonly elements = new Map<ShownLine, HTMLElement>();
  private readers = new Map<string, LineReader>();
  private positions = new Positions();
  private cut = new AbortController();
  private job: Job | undefined;
  private attempt = 0;
  private isBegun = false;
  private isPainting = false;
  private rankCount = 1;
  /** How large the pane was when it was looked at last. */
  private shape = "";

  constructor(private readonly id: number, private readonly until: AbortSignal) {
    this.streams.offer([["", "both"], ["STREAM_STDOUT", "standard output"], ["STREAM_STDERR", "standard error"]]);
    this.ranks.offer([["", "all"]]);
    const controls = h("div", { class: "controls" },
      this.ranks.element, this.streams.element, h("label", { class: "switch" }, this.follow, "Follow"), this.status);
    this.element = section("output", "Output", controls, this.above, this.pane, this.empty);
    show(this.above, false);
    const resized = new ResizeObserver(() => this.scrolled());
    resized.observe(this.pane);
    until.addEventListener("abort", () => {
      this.cut.abort();
      resized.disconnect();
    });
  }

  /** `attempt`: its number; 0 for the newest and every later one. */
  update(job: Job, attempt: number): void {
    this.job = job;
    this.rankCount = Math.max(1, ...job.attempts.map(({ ranks }) => ranks.length));
    const ranks = this.rankCount === 1 ? [] : Array.from({ length: this.rankCount }, (_, rank): [string, string] => [String(rank), String(rank)]);
    this.ranks.offer([["", "all"], ...ranks]);
    show(this.element, job.array_counts === undefined);
    if (job.array_counts !== undefined) return;
    if (!this.isBegun || attempt !== this.attempt) {
      this.attempt = attempt;
      this.restart();
    }
    this.tellEmpty();
  }

  /** Read from the newest lines on: at first, and when other ranks, streams or attempts are wanted. */
  private restart(): void {
    this.isBegun = true;
    this.cut.abort();
    this.cut = new AbortController();
    this.screen.clear();
    this.readers = new Map();
    this.positions = new Positions();
    this.follow.checked = true;
    this.paintSoon();
    stream("StreamOutput", () => this.request(), {
      onMessage: (piece) => this.take(piece),
      onState: (state, problem) => this.tell(state, problem),
    }, this.cut.signal);
  }

  private request(): Partly<StreamOutputRequest> {
    const positions = this.positions.told();
    return {
      job_id: String(this.id), attempt: this.attempt, follow: true,
      ...(this.ranks.select.value === "" ? {} : { rank: Number(this.ranks.select.value) }),
      ...(this.streams.select.value === "" ? {} : { stream: this.streams.select.value as Stream }),
      // After a cut it goes on where it was read; else what is older than there is room for is not even asked for.
      ...(positions.length > 0 ? { positions } : { tail_lines: LINES_MAX }),
    };
  }

  private take(piece: StreamOutputResponse): void {
    const key = keyOf(piece.attempt, piece.rank, piece.stream);
    if (piece.gap) {
      const [from, to] = [whole(piece.gap.from_offset), whole(piece.gap.to_offset)];
      this.positions.take(piece.attempt, piece.rank, piece.stream, to, new Uint8Array());
      this.readers.delete(key);
      this.screen.note(key, `… ${size(to - from)} are missing here …`);
    } else if (piece.data !== "" || piece.stream !== "STREAM_UNSPECIFIED") {
      const { fresh, skipped } = this.positions.take(piece.attempt, piece.rank, piece.stream, whole(piece.offset), bytesOf(piece.data));
      if (skipped > 0) this.screen.note(key, `… ${size(skipped)} are missing here …`);
      const reader = this.readers.get(key) ?? new LineReader();
      this.readers.set(key, reader);
      if (fresh.length > 0) this.screen.add(key, reader.push(fresh));
    }
    if (piece.is_end) {
      this.cut.abort();
      write(this.status, "complete");
    }
    this.paintSoon();
  }

  private tell(state: Liveness, problem: Problem | null): void {
    const over = problem === null ? "complete" : sentence(problem.message);
    write(this.status, state === "live" ? "live" : state === "stale" ? "not live: it goes on where it was" : over);
  }

  // --- showing it

  private paintSoon(): void {
    if (this.isPainting) return;
    this.isPainting = true;
    if (document.hidden) setTimeout(() => this.paint(), HIDDEN_MS);
    else requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.isPainting = false;
    if (this.until.aborted) return;
    const { removed, changed } = this.screen.changes();
    for (const line of removed) {
      this.elements.get(line)?.remove();
      this.elements.delete(line);
    }
    const fresh = document.createDocumentFragment();
    for (const line of changed) {
      const known = this.elements.get(line);
      if (known !== undefined) known.lastElementChild?.replaceWith(written(line.runs));
      else fresh.append(this.made(line));
    }
    this.list.append(fresh);
    const { dropped } = this.screen;
    write(this.above, dropped > 0 ? `The newest ${LINES_MAX.toLocaleString("en")} lines are shown; all of them: gpuctl logs ${this.id}` : "");
    show(this.above, dropped > 0);
    this.tellEmpty();
    if (this.follow.checked) this.pane.scrollTop = this.pane.scrollHeight;
  }

  private made(line: ShownLine): HTMLElement {
    const [attempt = "", rank = "", name = ""] = line.key.split("/");
    const from = [this.attempt === 0 && (this.job?.attempt_count ?? 1) > 1 ? `attempt ${attempt}` : "", this.rankCount > 1 ? `rank ${rank}` : ""].filter(Boolean).join(" ");
    const kind = line.isNote ? "note" : name === "STREAM_STDERR" ? "stderr" : "stdout";
    const element = h("div", { class: `line ${kind}` }, ...(from === "" ? [] : [h("span", { class: "from" }, from)]), written(line.runs));
    this.elements.set(line, element);
    return element;
  }

  private tellEmpty(): void {
    const isEmpty = this.elements.size === 0;
    show(this.empty, isEmpty);
    show(this.pane, !isEmpty);
    const words = this.job === undefined ? "" : hasEnded(this.job.state) ? "It wrote nothing." : this.job.attempt_count === 0 ? "It has not started yet." : "No output yet.";
    write(this.empty, words);
  }

  /** Who scrolls back wants to read; who comes to the end, to follow. */
  private scrolled(): void {
    const { clientWidth, clientHeight } = this.pane;
    const shape = `${clientWidth}/${clientHeight}`;
    if (shape !== this.shape) {
      // A window of another size wraps the lines anew, and nobody has scrolled.
      this.shape = shape;
      this.followed();
    } else this.follow.checked = this.pane.scrollHeight - this.pane.scrollTop - this.pane.clientHeight < NEAR_PX;
  }

  private followed(): void {
    if (this.follow.checked) this.pane.scrollTop = this.pane.scrollHeight;
  }
}

/** A line's text with its colours. They are classes and values of our own making, whatever the job wrote. */
function written(line: Line): HTMLElement {
  return h("span", {}, ...line.map(({ text, look }) => {
    if (look === "") return text;
    const names = look.split(" ");
    const run = h("span", { class: names.map((name) => name.replace(/#.*/, "own")).join(" ") }, text);
    for (const name of names) if (name.includes("#")) run.style.setProperty(`--${name.slice(0, 2)}`, name.slice(3));
    return run;
  }));
}
