// Frames on their way to the screen: decoded by the browser's own threads, the newest one drawn, once a screen refresh.

import type { Frame } from "./wire.ts";

/** A hidden page draws nothing; it takes a frame now and then, so that the newest is there when somebody looks. */
const HIDDEN_MS = 1_000;

const RATE_WINDOW_MS = 1_000;

export class Frames {
  private readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly shown: (frame: Frame) => void;
  private waiting: Frame | null = null;
  private isDecoding = false;
  private ready: { frame: Frame; bitmap: ImageBitmap } | null = null;
  private refresh = 0;
  private drawnAt: number[] = [];
  private acknowledgedAt = 0;
  /** Rises with each `clear`: what was decoded for an earlier turn is not shown. */
  private run = 0;

  /** `shown` is called for each frame that is on the screen, or was passed over because nobody looks. */
  constructor(canvas: HTMLCanvasElement, shown: (frame: Frame) => void) {
    const context = canvas.getContext("2d", { alpha: false });
    if (context === null) throw new Error("this browser draws nothing on a canvas");
    this.canvas = canvas;
    this.context = context;
    this.shown = shown;
  }

  /** A frame has come; one that waits still gives way to it. */
  take(frame: Frame): void {
    this.waiting = frame;
    if (!document.hidden) void this.decode();
  }

  /** Called several times a second. */
  tick(): void {
    const now = performance.now();
    if (!document.hidden || this.waiting === null || now - this.acknowledgedAt < HIDDEN_MS) return;
    this.acknowledgedAt = now;
    this.shown(this.waiting);
  }

  /** Somebody looks at the page again. */
  wake(): void {
    if (this.waiting !== null) void this.decode();
  }

  /** Frames drawn in the last second. */
  rate(): number {
    const since = performance.now() - RATE_WINDOW_MS;
    this.drawnAt = this.drawnAt.filter((at) => at > since);
    return this.drawnAt.length;
  }

  /** A new turn begins: an empty picture. */
  clear(): void {
    this.run += 1;
    this.waiting = null;
    this.ready?.bitmap.close();
    this.ready = null;
    this.drawnAt = [];
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  private async decode(): Promise<void> {
    if (this.isDecoding) return;
    this.isDecoding = true;
    try {
      while (this.waiting !== null && !document.hidden) {
        const frame: Frame = this.waiting;
        const run = this.run;
        this.waiting = null;
        const bitmap = await createImageBitmap(new Blob([frame.picture], { type: frame.mediaType })).catch(() => null);
        // A picture that cannot be read is passed over: the next one may be well.
        if (bitmap === null) this.shown(frame);
        else if (run !== this.run) bitmap.close();
        else this.put(frame, bitmap);
      }
    } finally {
      this.isDecoding = false;
    }
  }

  private put(frame: Frame, bitmap: ImageBitmap): void {
    this.ready?.bitmap.close();
    this.ready = { frame, bitmap };
    this.refresh ||= requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    this.refresh = 0;
    if (this.ready === null) return;
    const { frame, bitmap } = this.ready;
    this.ready = null;
    if (this.canvas.width !== bitmap.width || this.canvas.height !== bitmap.height) {
      this.canvas.width = bitmap.width;
      this.canvas.height = bitmap.height;
    }
    this.context.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.drawnAt.push(performance.now());
    this.shown(frame);
  }
}
