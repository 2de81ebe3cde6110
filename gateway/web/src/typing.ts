// Keys and text for the model. What has the focus is a text field, so that input methods, phones' keyboards and pasting
// work as everywhere; what they write into it is read by comparing, and taken out again.

import { KEY_CHARS_MAX, pieces, type Input } from "./wire.ts";

/** What stays in the field, so that a phone's keyboard has something to delete. */
const GROUND = "\u200b";

/** A field that holds more than this is emptied when nothing is being composed. */
const FIELD_CHARS_MAX = 200;

export class Typing {
  private readonly field: HTMLTextAreaElement;
  private readonly send: (input: Input) => void;
  /** The keys that are down, by their place on the keyboard: with Shift let go before it, "A" comes up as "a". */
  private readonly down = new Map<string, string>();
  private known = GROUND;

  constructor(field: HTMLTextAreaElement, send: (input: Input) => void) {
    this.field = field;
    this.send = send;
    this.reset();
    field.addEventListener("keydown", (event) => this.press(event));
    field.addEventListener("keyup", (event) => this.release(placeOf(event)));
    // What is being composed is nobody's yet: neither half a word goes out nor what takes it back.
    field.addEventListener("input", (event) => (event as InputEvent).isComposing || this.read());
    field.addEventListener("compositionend", () => this.read());
    field.addEventListener("blur", () => this.leave());
  }

  private press(event: KeyboardEvent): void {
    if (!isForTheModel(event)) return;
    event.preventDefault();
    this.down.set(placeOf(event), event.key);
    this.send({ type: "key", key: event.key, down: true, repeat: event.repeat });
    if (isPrintable(event.key)) this.send({ type: "text", text: event.key });
  }

  private release(place: string): void {
    const key = this.down.get(place);
    if (key === undefined) return;
    this.down.delete(place);
    this.send({ type: "key", key, down: false, repeat: false });
  }

  /** Tell what was written into the field, or taken from it. */
  private read(): void {
    const now = this.field.value;
    let same = 0;
    while (same < now.length && same < this.known.length && now[same] === this.known[same]) same += 1;
    const gone = [...this.known.slice(same)].length;
    for (let each = 0; each < gone; each += 1) this.tap("Backspace");
    const lines = now.slice(same).replaceAll(GROUND, "").split("\n");
    lines.forEach((line, number) => {
      if (number > 0) this.tap("Enter");
      for (const text of pieces(line)) this.send({ type: "text", text });
    });
    this.known = now;
    if (now === "" || now.length > FIELD_CHARS_MAX) this.reset();
  }

  private tap(key: string): void {
    this.send({ type: "key", key, down: true, repeat: false });
    this.send({ type: "key", key, down: false, repeat: false });
  }

  private leave(): void {
    for (const place of [...this.down.keys()]) this.release(place);
    this.reset();
  }

  private reset(): void {
    this.field.value = this.known = GROUND;
    this.field.setSelectionRange(GROUND.length, GROUND.length);
  }
}

/** Tab leaves the picture, and the browser keeps its own: reload, find, zoom, the address. Input methods keep theirs. */
function isForTheModel(event: KeyboardEvent): boolean {
  if (event.isComposing || event.key === "" || event.key.length > KEY_CHARS_MAX) return false;
  if (["Tab", "Dead", "Process", "Unidentified"].includes(event.key) || /^F\d+$/.test(event.key)) return false;
  return event.getModifierState("AltGraph") || !(event.ctrlKey || event.metaKey || event.altKey);
}

/** Which key it is, whatever it writes just now; keyboards on a screen name none. */
function placeOf(event: KeyboardEvent): string {
  return event.code || event.key;
}

/** Whether a key writes what it is called; all others have a name of several letters. */
export function isPrintable(key: string): boolean {
  return [...key].length === 1;
}
