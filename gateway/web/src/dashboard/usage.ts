import { h } from "../dom.ts";

export function show(place: HTMLElement, _parameter: string, _until: AbortSignal): void {
  place.append(h("h1", { tabindex: "-1" }, "Usage"));
}
