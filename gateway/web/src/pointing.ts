// The pointer on the picture: buttons at once and in order, moves once a screen refresh, the wheel.

import { BUTTONS_MAX, WHEEL_PIXELS_MAX, type Input } from "./wire.ts";

const LINE_PIXELS = 16;

export class Pointing {
  private readonly target: HTMLElement;
  private readonly send: (input: Input) => void;
  private buttons = 0;
  private moved: { x: number; y: number } | null = null;
  private refresh = 0;
  private pointer: number | null = null;

  constructor(target: HTMLElement, send: (input: Input) => void) {
    this.target = target;
    this.send = send;
    target.addEventListener("pointerdown", (event) => this.press(event));
    target.addEventListener("pointermove", (event) => this.move(event));
    target.addEventListener("pointerup", (event) => this.press(event));
    target.addEventListener("pointercancel", (event) => this.cancel(event));
    target.addEventListener("contextmenu", (event) => event.preventDefault());
    // Some browsers scroll or zoom by what a finger does before a pointer event is heard.
    for (const kind of ["touchstart", "touchmove", "dblclick"]) {
      target.addEventListener(kind, (event) => event.preventDefault(), { passive: false });
    }
    target.addEventListener("wheel", (event) => this.turn(event), { passive: false });
  }

  private press(event: PointerEvent): void {
    if (!this.isOurs(event)) return;
    event.preventDefault();
    if (event.type === "pointerdown" && this.pointer === null) {
      this.pointer = event.pointerId;
      // A stroke that leaves the picture is still one; of a pointer that has gone meanwhile there is none to hold.
      if (this.target.isConnected) tryTo(() => this.target.setPointerCapture(event.pointerId));
    }
    this.button(event, event.buttons);
    if (event.buttons === 0) this.pointer = null;
  }

  private move(event: PointerEvent): void {
    if (!this.isOurs(event)) return;
    // A second button of a mouse comes as a move.
    if (event.buttons !== this.buttons && event.pointerType === "mouse" && this.pointer !== null) {
      this.button(event, event.buttons);
      return;
    }
    this.moved = this.place(event);
    this.refresh ||= requestAnimationFrame(() => this.flush());
  }

  private cancel(event: PointerEvent): void {
    if (event.pointerId !== this.pointer) return;
    this.button(event, 0);
    this.pointer = null;
  }

  private button(event: PointerEvent, buttons: number): void {
    this.flush();
    this.buttons = buttons & BUTTONS_MAX;
    this.send({ type: "pointer", ...this.place(event), buttons: this.buttons, button_change: true });
  }

  private turn(event: WheelEvent): void {
    if (event.ctrlKey) return; // the browser's own zoom
    event.preventDefault();
    this.flush();
    const unit = event.deltaMode === 0 ? 1 : event.deltaMode === 1 ? LINE_PIXELS : this.target.clientHeight;
    const turned = (delta: number) => Math.min(WHEEL_PIXELS_MAX, Math.max(-WHEEL_PIXELS_MAX, delta * unit));
    this.send({ type: "wheel", dx: turned(event.deltaX), dy: turned(event.deltaY), ...this.place(event) });
  }

  private flush(): void {
    cancelAnimationFrame(this.refresh);
    this.refresh = 0;
    if (this.moved === null) return;
    this.send({ type: "pointer", ...this.moved, buttons: this.buttons, button_change: false });
    this.moved = null;
  }

  /** Of several fingers the first one counts. */
  private isOurs(event: PointerEvent): boolean {
    return this.pointer === null ? event.isPrimary : event.pointerId === this.pointer;
  }

  private place(event: MouseEvent): { x: number; y: number } {
    const box = this.target.getBoundingClientRect();
    return { x: share(event.clientX - box.left, box.width), y: share(event.clientY - box.top, box.height) };
  }
}

function share(part: number, whole: number): number {
  return whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
}

function tryTo(action: () => void): void {
  try {
    action();
  } catch (problem) {
    if (!(problem instanceof DOMException)) throw problem;
  }
}
