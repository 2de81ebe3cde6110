// The scheduler's clock, as far as its answers tell it: times are compared with it, and never with the browser's own.

let ahead = 0;

/** Clocks that are this near are alike: an answer is on its way for a while. */
const ALIKE_MS = 2_000;

/** The scheduler said what time it is. */
export function heard(time: string | undefined): void {
  if (time === undefined) return;
  const difference = Date.parse(time) - Date.now();
  ahead = Math.abs(difference) < ALIKE_MS ? 0 : difference;
}

/** Its time now, in milliseconds. */
export function now(): number {
  return Date.now() + ahead;
}

/** Call back every second while somebody looks. */
export function everySecond(callback: () => void, until: AbortSignal): void {
  const timer = setInterval(() => {
    if (!document.hidden) callback();
  }, 1_000);
  until.addEventListener("abort", () => clearInterval(timer), { once: true });
}
