import assert from "node:assert/strict";
import { test } from "node:test";

import { bytesOf, LINE_CHARACTERS_MAX, LineReader, Positions } from "../src/dashboard/job/lines.ts";
import { LINES_MAX, Screen } from "../src/dashboard/job/screen.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** All lines of a text that comes in pieces of so many bytes. */
function read(text: string, size: number): string[] {
  const reader = new LineReader();
  const all = bytes(text);
  const lines: string[] = [];
  let open = "";
  for (let at = 0; at < all.length; at += size) {
    const got = reader.push(all.slice(at, at + size));
    lines.push(...got.lines);
    open = got.open;
  }
  return [...lines, open];
}

test("lines are the same wherever the bytes are cut", () => {
  const text = "épochs: 1\n\u001b[1;32mgreen\u001b[0m 漢字\n\u001b]0;title\u0007loss \u001b]8;;http://x\u001b\\link\u001b]8;;\u001b\\\nopen";
  const wanted = ["épochs: 1", "green 漢字", "loss link", "open"];
  for (const size of [1, 2, 3, 7, 1_000]) assert.deepEqual(read(text, size), wanted, `pieces of ${size}`);
});

test("a carriage return writes over the line, as on a terminal, and one before the line's end does not", () => {
  assert.deepEqual(read(" 1 %\r 2 %\r100 %\r\nnext\r\n", 3), ["100 %", "next", ""]);
  assert.deepEqual(read("half\rwh", 2), ["wh"]);
});

test("what is not text leaves no trace, and HTML is text", () => {
  assert.deepEqual(read("a\u0000b\u0007c\u007f\t<b onclick=x>d</b>\n", 4), ["abc\t<b onclick=x>d</b>", ""]);
  assert.deepEqual(new LineReader().push(new Uint8Array([255, 254, 65, 10])).lines, ["\ufffd\ufffdA"]);
});

test("a line is never longer than there is room for, and says what is missing", () => {
  const [line] = read(`${"x".repeat(LINE_CHARACTERS_MAX + 1_500)}\n`, 900);
  assert.equal(line, `${"x".repeat(LINE_CHARACTERS_MAX)} … 1,500 more characters`);
});

test("a control sequence that never ends is not waited for", () => {
  const lines = read(`\u001b]0;${"t".repeat(5_000)}\nseen\n`, 100);
  assert.equal(lines[1], "seen");
});

test("what comes twice after a cut is shown once, and what never came is a gap", () => {
  const positions = new Positions();
  const take = (offset: number, text: string): [string, number] => {
    const { fresh, skipped } = positions.take(1, 0, "STREAM_STDOUT", offset, bytes(text));
    return [new TextDecoder().decode(fresh), skipped];
  };
  assert.deepEqual(take(100, "abc"), ["abc", 0]);
  assert.deepEqual(take(100, "abcde"), ["de", 0]);
  assert.deepEqual(take(101, "bc"), ["", 0]);
  assert.deepEqual(take(105, "f"), ["f", 0]);
  assert.deepEqual(take(110, "g"), ["g", 4]);
  positions.take(1, 1, "STREAM_STDERR", 0, bytes(""));
  assert.deepEqual(positions.told(), [
    { attempt: 1, rank: 0, stream: "STREAM_STDOUT", offset: "111" },
    { attempt: 1, rank: 1, stream: "STREAM_STDERR", offset: "0" },
  ]);
});

test("base64 becomes the bytes that were written", () => {
  assert.deepEqual([...bytesOf("AP9BCg==")], [0, 255, 65, 10]);
  assert.deepEqual([...bytesOf("")], []);
});

test("the screen holds the newest lines, and knows what it showed", () => {
  const screen = new Screen();
  screen.add("a", { lines: ["one"], open: "tw" });
  screen.add("b", { lines: ["other"], open: "" });
  assert.deepEqual(screen.changes().changed.map(({ text }) => text), ["one", "tw", "other"]);
  screen.add("a", { lines: ["two"], open: "" });
  assert.deepEqual(screen.changes().changed.map(({ text }) => text), ["two"], "the line that went on is written anew where it stands");
  assert.deepEqual(screen.changes(), { removed: [], changed: [] });
  screen.note("a", "… 3 kB are missing here …");
  screen.add("a", { lines: Array.from({ length: 3 * LINES_MAX }, (_, at) => `line ${at}`), open: "" });
  const { removed, changed } = screen.changes();
  assert.deepEqual(removed.map(({ text }) => text), ["one", "two", "other"], "what was never shown need not be taken away");
  assert.equal(changed.length, LINES_MAX);
  assert.equal(changed[0]?.text, `line ${2 * LINES_MAX}`);
  assert.equal(screen.dropped, 2 * LINES_MAX + 3, "notes are no lines of the job");
  screen.clear();
  assert.equal(screen.changes().removed.length, LINES_MAX);
  assert.equal(screen.dropped, 0);
});

test("a line that goes on while it leaves the screen comes as a new one", () => {
  const screen = new Screen();
  screen.add("a", { lines: [], open: "50 %" });
  screen.changes();
  screen.add("b", { lines: Array.from({ length: LINES_MAX }, (_, at) => `line ${at}`), open: "" });
  screen.add("a", { lines: ["100 %"], open: "" });
  assert.equal(screen.changes().changed.at(-1)?.text, "100 %");
});
