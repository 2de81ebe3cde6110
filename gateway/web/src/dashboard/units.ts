// Times and sizes as people type them, read as gpuctl reads them: "90s", "1h30m", "8GB". A number alone is refused.

const SECONDS: Readonly<Record<string, number>> = { d: 86_400, h: 3_600, m: 60, min: 60, s: 1 };
const BYTES: Readonly<Record<string, number>> = {
  b: 1,
  ...{ kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
  ...{ kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 },
};

/** A value, or why it is none, with what to write instead. */
export type Read<T> = { readonly value: T } | { readonly wrong: string };

/** Seconds in "90s", "1h30m", "2d" or "1:30:00". */
export function readDuration(text: string): Read<number> {
  const said = text.trim();
  const clock = /^(?:(\d{1,5})-)?(\d{1,6}):([0-5]\d):([0-5]\d)$/.exec(said);
  if (clock !== null) {
    const [days = 0, hours = 0, minutes = 0, seconds = 0] = clock.slice(1).map((each) => Number(each ?? 0));
    return { value: ((days * 24 + hours) * 60 + minutes) * 60 + seconds };
  }
  if (/^\d+(\.\d+)?$/.test(said)) return { wrong: `${said} has no unit. Write ${said}m for minutes, ${said}h for hours.` };
  if (!/^(\d+(\.\d+)?\s*[a-z]+\s*)+$/.test(said)) return { wrong: "This is no duration. Write it as 30s, 5m, 2h or 1h30m." };
  let total = 0;
  const seen = new Set<number>();
  for (const [, number = "0", unit = ""] of said.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g)) {
    const seconds = SECONDS[unit];
    if (seconds === undefined) return { wrong: `"${unit}" is not a unit of time. Use d, h, m or s, as in 1h30m.` };
    if (seen.has(seconds)) return { wrong: `"${unit}" comes twice. Name each unit once, as in 1h30m.` };
    seen.add(seconds);
    total += Number(number) * seconds;
  }
  return { value: total };
}

/** "1h30m": what `readDuration` reads as so many seconds. */
export function writeDuration(seconds: number): string {
  let rest = Math.round(seconds);
  let text = "";
  for (const unit of ["d", "h", "m", "s"] as const) {
    const count = Math.floor(rest / (SECONDS[unit] ?? 1));
    rest -= count * (SECONDS[unit] ?? 1);
    if (count > 0) text += `${count}${unit}`;
  }
  return text || "0s";
}

/** Bytes in "8GB", "8GiB" or "512MB". */
export function readSize(text: string): Read<number> {
  const said = text.trim();
  if (/^\d+(\.\d+)?$/.test(said)) return { wrong: `${said} has no unit. Write ${said}MB or ${said}GB.` };
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]+)$/i.exec(said);
  if (found === null) return { wrong: "This is no size. Write it as 8GB, 500MB or 16GiB." };
  const unit = BYTES[(found[2] ?? "").toLowerCase()];
  if (unit === undefined) return { wrong: `"${found[2]}" is not a unit of size. Use MB, GB or GiB.` };
  const bytes = Number(found[1]) * unit;
  return Number.isInteger(bytes) && bytes < 2 ** 53 ? { value: bytes } : { wrong: "This is not a whole number of bytes." };
}

/** "8GB": what `readSize` reads as so many bytes. */
export function writeSize(bytes: number): string {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["MB", 1e6]] as const) {
    const count = bytes / size;
    if (count >= 1 && Number.isInteger(count * 10)) return `${count}${unit}`;
  }
  return `${bytes}B`;
}
