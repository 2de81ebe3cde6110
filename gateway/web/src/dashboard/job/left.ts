// Files that a job left: where each is, how it is called, and what of it can be shown. Pure.

import type { RankFiles } from "../../generated/messages.ts";
import { time, whole } from "../values.ts";
import { clockWords, lasted } from "./words.ts";

/** Larger pictures are not shown beside the others. */
export const PICTURE_BYTES_MAX = 8_000_000;
/** Of a text this much is shown. */
export const TEXT_BYTES_MAX = 64_000;

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;

export interface LeftFile {
  readonly rank: number;
  readonly path: string;
  readonly bytes: number;
}

/** All that ranks left, rank by rank. */
export function filesOf(ranks: readonly Pick<RankFiles, "rank" | "files">[]): readonly LeftFile[] {
  return ranks.flatMap(({ rank, files }) => files.map((each) => ({ rank, path: each.path, bytes: whole(each.size_bytes) })));
}

/** Its address. Of whatever its name holds, nothing ends the path. */
export function addressOfFile(job: number, { rank, path }: Pick<LeftFile, "rank" | "path">): string {
  const name = path.split("/").map(encodeURIComponent).join("/");
  return `api/v1/jobs/${job}/files/${name}${rank === 0 ? "" : `?rank=${rank}`}`;
}

/** Its name for eyes: what would not be seen, or turn the rest around, is spelled out. */
export function shownName(path: string): string {
  return path.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (each) => `\\u{${(each.codePointAt(0) ?? 0).toString(16)}}`);
}

/** Whether it is shown as a picture; a name is no promise, and what is none is not drawn. */
export function isPicture({ path, bytes }: Pick<LeftFile, "path" | "bytes">): boolean {
  return PICTURE.test(path) && bytes > 0 && bytes <= PICTURE_BYTES_MAX;
}

/** The text that bytes are; undefined where they are none. They may end in the middle of a character. */
export function textOf(bytes: Uint8Array): string | undefined {
  return bytes.includes(0) ? undefined : new TextDecoder().decode(bytes, { stream: true });
}

/** "Stored 2 h ago, kept until 26 Dec 2026, 16:05:09."; where nothing is stored, what became of it. */
export function rankWords(rank: Pick<RankFiles, "attempt" | "rank" | "is_stored" | "message" | "store_time" | "drop_time">, hasSeveral: boolean, now: number): string {
  const of = hasSeveral ? `Rank ${rank.rank}: ` : "";
  const at = time(rank.store_time), until = time(rank.drop_time);
  const words = rank.is_stored
    ? [`stored ${at === undefined ? "" : `${lasted(Math.round(now - at))} ago`}`, until === undefined ? "" : `kept until ${clockWords(until, now)}`].filter(Boolean).join(", ")
    : `nothing is stored${rank.message === "" ? "" : `: ${rank.message}`}`;
  const said = `${of}${words} (attempt ${rank.attempt}).`;
  return said.charAt(0).toUpperCase() + said.slice(1);
}
