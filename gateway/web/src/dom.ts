// Elements in one call: h("button", { class: "quiet", onclick: leave }, "Leave").

type Value = string | boolean | ((event: Event) => void);

export function h<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  properties: Readonly<Record<string, Value>> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(key, value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** Set a text only when it is another one: a live region or a selection stays as it is otherwise. */
export function write(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Show an element, or take it away from eyes and ears. */
export function show(element: HTMLElement, isShown: boolean): void {
  if (element.hidden === isShown) element.hidden = !isShown;
}
