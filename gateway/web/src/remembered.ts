// What a reload finds again: the model and the key of the place, as long as there is a place to come back to.

import { PLACE_KEPT_MS } from "./state.ts";

const NAME = "gpufleet.place";

export interface Remembered {
  readonly model: string;
  readonly key: string;
}

/** Remember for this tab alone; the time is renewed several times a minute. */
export function remember(model: string, key: string): void {
  tryTo(() => sessionStorage.setItem(NAME, JSON.stringify({ model, key, at: Date.now() })));
}

export function forget(): void {
  tryTo(() => sessionStorage.removeItem(NAME));
}

/** What was remembered; null when nothing was, or when it is too old: nobody must stand in a line unasked. */
export function recall(): Remembered | null {
  let found: string | null = null;
  tryTo(() => (found = sessionStorage.getItem(NAME)));
  if (found === null) return null;
  try {
    const { model, key, at } = JSON.parse(found) as Record<string, unknown>;
    if (typeof model !== "string" || typeof key !== "string" || typeof at !== "number") return null;
    const age = Date.now() - at;
    return age >= 0 && age < PLACE_KEPT_MS ? { model, key } : null;
  } catch {
    return null;
  }
}

const PHRASES = "gpufleet.phrases";

/** Remember for this tab alone what opened a model; an empty phrase is forgotten. */
export function rememberPhrase(model: string, phrase: string): void {
  const { [model]: _, ...others } = phrases();
  const next = phrase === "" ? others : { ...others, [model]: phrase };
  known = next;
  tryTo(() => sessionStorage.setItem(PHRASES, JSON.stringify(next)));
}

/** What opened a model before; empty for nothing. */
export function phraseOf(model: string): string {
  const phrase = phrases()[model];
  return typeof phrase === "string" ? phrase : "";
}

/** Where the browser forbids that anything is remembered, it is known until the next load. */
let known: Record<string, unknown> | null = null;

function phrases(): Record<string, unknown> {
  if (known !== null) return known;
  let found: string | null = null;
  tryTo(() => (found = sessionStorage.getItem(PHRASES)));
  try {
    const read: unknown = JSON.parse(found ?? "{}");
    known = typeof read === "object" && read !== null ? (read as Record<string, unknown>) : {};
  } catch {
    known = {};
  }
  return known;
}

/** A browser may forbid that anything is remembered; then a reload begins anew. */
function tryTo(action: () => void): void {
  try {
    action();
  } catch (problem) {
    if (!(problem instanceof DOMException)) throw problem;
  }
}
