import assert from "node:assert/strict";
import { test } from "node:test";

import { Pen, textOf, type Line } from "../src/dashboard/job/colours.ts";
import { bytesOf, LINE_CHARACTERS_MAX, LineReader, Positions, RUNS_MAX } from "../src/dashboard/job/lines.ts";
import { LINES_MAX, Screen } from "../src/dashboard/job/screen.ts";

const line = (text: string): Line => (text === "" ? [] : [{ text, look: "" }]);
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** All lines of a text that comes in pieces of so many bytes. */
function read(text: string, size: number): string[] {
  const reader = new LineReader();
  const all = bytes(text);
  const lines: string[] = [];
  let open = "";
  for (let at = 0; at < all.length; at += size) {
    const got = reader.push(all.slice(at, at + size));
    lines.push(...got.lines.map(textOf));
    open = textOf(got.open);
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
  assert.deepEqual(new LineReader().push(new Uint8Array([255, 254, 65, 10])).lines.map(textOf), ["\ufffd\ufffdA"]);
});

test("a line is never longer than there is room for, and says what is missing", () => {
  const [first] = read(`${"x".repeat(LINE_CHARACTERS_MAX + 1_500)}\n`, 900);
  assert.equal(first, `${"x".repeat(LINE_CHARACTERS_MAX)} … 1,500 more characters`);
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
  screen.add("a", { lines: [line("one")], open: line("tw") });
  screen.add("b", { lines: [line("other")], open: line("") });
  assert.deepEqual(screen.changes().changed.map(({ runs }) => textOf(runs)), ["one", "tw", "other"]);
  screen.add("a", { lines: [line("two")], open: line("") });
  assert.deepEqual(screen.changes().changed.map(({ runs }) => textOf(runs)), ["two"], "the line that went on is written anew where it stands");
  assert.deepEqual(screen.changes(), { removed: [], changed: [] });
  screen.note("a", "… 3 kB are missing here …");
  screen.add("a", { lines: Array.from({ length: 3 * LINES_MAX }, (_, at) => line(`line ${at}`)), open: [] });
  const { removed, changed } = screen.changes();
  assert.deepEqual(removed.map(({ runs }) => textOf(runs)), ["one", "two", "other"], "what was never shown need not be taken away");
  assert.equal(changed.length, LINES_MAX);
  assert.equal(textOf(changed[0]?.runs ?? []), `line ${2 * LINES_MAX}`);
  assert.equal(screen.dropped, 2 * LINES_MAX + 3, "notes are no lines of the job");
  screen.clear();
  assert.equal(screen.changes().removed.length, LINES_MAX);
  assert.equal(screen.dropped, 0);
});

test("a line that goes on while it leaves the screen comes as a new one", () => {
  const screen = new Screen();
  screen.add("a", { lines: [], open: line("50 %") });
  screen.changes();
  screen.add("b", { lines: Array.from({ length: LINES_MAX }, (_, at) => line(`line ${at}`)), open: [] });
  screen.add("a", { lines: [line("100 %")], open: line("") });
  assert.equal(textOf(screen.changes().changed.at(-1)?.runs ?? []), "100 %");
});

/** Runs of all lines, as "look:text". */
function looks(text: string, size = 1_000): string[][] {
  const reader = new LineReader();
  const lines: string[][] = [];
  const all = bytes(text);
  for (let at = 0; at < all.length; at += size) {
    lines.push(...reader.push(all.slice(at, at + size)).lines.map((runs) => runs.map(({ text, look }) => `${look}:${text}`)));
  }
  return lines;
}

test("colours are kept, wherever the bytes are cut and over the end of a line", () => {
  const text = "a \u001b[1;32mgreen\u001b[0m b\n\u001b[31mred\n\u001b[1mboth\u001b[39m bold\u001b[22;44m blue ground\u001b[m\n";
  const wanted = [
    [":a ", "bold fg-2:green", ": b"],
    ["fg-1:red"],
    ["bold fg-1:both", "bold: bold", "bg-4: blue ground"],
  ];
  for (const size of [1, 2, 5, 1_000]) assert.deepEqual(looks(text, size), wanted, `pieces of ${size}`);
});

test("of 256 colours and of all others each is one, however it is written", () => {
  const look = (...parameters: string[]): string => {
    const pen = new Pen();
    for (const each of parameters) pen.take(each);
    return pen.look;
  };
  assert.equal(look("38;5;9"), "fg-9");
  assert.equal(look("38;5;196;1"), "bold fg-#ff0000");
  assert.equal(look("48;5;232"), "bg-#080808");
  assert.equal(look("38;2;1;2;255"), "fg-#0102ff");
  assert.equal(look("38:2::1:2:255;4"), "underline fg-#0102ff");
  assert.equal(look("38:2:1:2:255"), "fg-#0102ff");
  assert.equal(look("91;107"), "fg-9 bg-15");
  assert.equal(look("7;3;9", "27;29"), "italic");
  assert.equal(look("1", "0"), "");
  assert.equal(look("1", ""), "");
});

test("what is no colour of its kind changes nothing, and reaches no style or class", () => {
  const pen = new Pen();
  for (const odd of ["38", "38;5", "38;5;256", "38;2;1;2", "38;2;1;2;999", "48;9;1", "999", "-1", "38;5;x", "38:2::1:2", "1e3"]) {
    pen.take(odd);
    assert.match(pen.look, /^(bold|faint|)$/, odd);
    pen.take("0");
  }
  // Of a sequence with another end, or with signs that no number has, nothing is left.
  assert.deepEqual(looks("\u001b[2Ja\u001b[10;10Hb\u001b[?25lc\u001b[>4;1md\u001b]8;;javascript:alert(1)\u0007e\n"), [[":abcde"]]);
});

test("a line of many colours is bounded", () => {
  const [runs] = looks(`${Array.from({ length: 1_000 }, (_, at) => `\u001b[3${at % 8}mx`).join("")}\n`);
  assert.equal(runs?.length, RUNS_MAX);
});

test("an open line that is written over takes its colours with it", () => {
  const reader = new LineReader();
  assert.deepEqual(reader.push(bytes("\u001b[31m10 %")).open, [{ text: "10 %", look: "fg-1" }]);
  assert.deepEqual(reader.push(bytes("\r\u001b[32m20 %")).open, [{ text: "20 %", look: "fg-2" }]);
  const screen = new Screen();
  screen.add("a", { lines: [], open: [{ text: "x", look: "fg-1" }] });
  screen.changes();
  screen.add("a", { lines: [], open: [{ text: "x", look: "fg-2" }] });
  assert.equal(screen.changes().changed.length, 1, "another colour is a change");
});
