// The items of an array: how many there are in each state, and each with where it is on its way.

import { h, show, write } from "../../dom.ts";
import type { ArrayItem, Job, JobState } from "../../generated/messages.ts";
import { call } from "../api.ts";
import { time } from "../values.ts";
import { word } from "../words.ts";
import { paced } from "./pace.ts";
import { choice, jobLink, problemWords, section, Table } from "./parts.ts";
import { ARRAY_STATES, endWords, lasted } from "./words.ts";

const READ_MS = 2_000;
const PAGE = 100;
/** Items that are shown; who looks for one among more chooses a state. */
const ITEMS_MAX = 1_000;

export class Items {
  readonly element: HTMLElement;
  private readonly counts = h("ul", { class: "counts" });
  private readonly table = new Table("Items of the array", ["Index", "Job", "State", "Node", "Ran for", "End"], 9);
  private readonly note = h("p", { class: "hint", role: "status" });
  private readonly more = h("button", { class: "quiet", onclick: () => this.longer() }, "More items");
  private readonly states = choice("Items that are", () => this.anew());
  private wanted = PAGE;
  private readonly ask: () => void;

  constructor(private readonly id: number, until: AbortSignal) {
    this.states.offer([["", "all"], ...ARRAY_STATES.map((state): [string, string] => [state, word(state)])]);
    this.element = section("items", "Items", this.counts, this.states.element, this.table.element, this.note, this.more);
    show(this.element, false);
    this.ask = paced(() => this.read(), READ_MS, until);
  }

  update(job: Job): void {
    const { array_counts: counts } = job;
    show(this.element, counts !== undefined);
    if (counts === undefined) return;
    const told = [["items", counts.items], ...ARRAY_STATES.filter((state) => counts[state] > 0).map((state) => [state, counts[state]])] as const;
    this.counts.replaceChildren(...told.map(([state, count]) => h("li", {}, h("b", {}, count.toLocaleString("en")), ` ${word(String(state))}`)));
    this.ask();
  }

  private anew(): void {
    this.wanted = PAGE;
    this.ask();
  }

  private longer(): void {
    this.wanted = Math.min(ITEMS_MAX, this.wanted + PAGE);
    this.ask();
  }

  private async read(): Promise<void> {
    const items: ArrayItem[] = [];
    let token = "";
    const state = this.states.select.value;
    const states = state === "" ? [] : [`JOB_STATE_${state.toUpperCase()}` as JobState];
    try {
      do {
        const told = await call("ListArrayItems", { job_id: String(this.id), page_size: PAGE, page_token: token, states });
        items.push(...told.items);
        token = told.next_page_token;
      } while (token !== "" && items.length < this.wanted);
      this.fill(items, token !== "");
    } catch (problem) {
      write(this.note, problemWords(problem));
    }
  }

  private fill(items: readonly ArrayItem[], hasMore: boolean): void {
    const now = Date.now() / 1_000;
    this.table.fill(items.map((item) => {
      const start = time(item.start_time);
      return [
        String(item.index), jobLink(item.job_id), word(item.state), item.nodes.join(", ") || "–",
        start === undefined ? "–" : lasted((time(item.end_time) ?? now) - start), endWords(item) || "–",
      ];
    }));
    show(this.table.element, items.length > 0);
    const isFull = items.length >= ITEMS_MAX;
    show(this.more, hasMore && !isFull);
    write(this.note, items.length === 0 ? "No item is in this state." : hasMore && isFull ? `The first ${ITEMS_MAX.toLocaleString("en")} are shown; all of them: gpuctl job ${this.id} --items` : "");
  }
}
