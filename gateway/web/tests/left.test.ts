import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOfFile, isPicture, PICTURE_BYTES_MAX, rankWords, shownName, textOf } from "../src/dashboard/job/left.ts";

const plain = (text: string): string => text.replaceAll("\u00a0", " ");

test("whatever a file is called, its address is that of this file", () => {
  const path = (name: string, rank = 0): string => new URL(addressOfFile(41, { rank, path: name }), "http://gateway/dashboard").href;
  assert.equal(path("out/loss.png"), "http://gateway/api/v1/jobs/41/files/out/loss.png");
  assert.equal(path("a?b#c%2e d", 3), "http://gateway/api/v1/jobs/41/files/a%3Fb%23c%252e%20d?rank=3");
  assert.equal(path("https://evil.example/x"), "http://gateway/api/v1/jobs/41/files/https%3A//evil.example/x");
  assert.equal(path("javascript:alert(1)"), "http://gateway/api/v1/jobs/41/files/javascript%3Aalert(1)");
});

test("a name that would be read as another one is spelled out", () => {
  assert.equal(shownName("loss 曲线.png"), "loss 曲线.png");
  assert.equal(shownName("photo\u202egnp.exe"), "photo\\u{202e}gnp.exe");
  assert.equal(shownName("a\nb\u2028c\u0000"), "a\\u{a}b\\u{2028}c\\u{0}");
});

test("pictures are those that browsers draw without running anything, up to a size", () => {
  for (const path of ["a.png", "b.JPG", "c.jpeg", "d.gif", "e.webp"]) assert.ok(isPicture({ path, bytes: 5 }), path);
  for (const path of ["a.svg", "b.png.html", "png", "c.pdf"]) assert.ok(!isPicture({ path, bytes: 5 }), path);
  assert.ok(!isPicture({ path: "a.png", bytes: 0 }));
  assert.ok(!isPicture({ path: "a.png", bytes: PICTURE_BYTES_MAX + 1 }));
});

test("a text may end in the middle of a character, and bytes with a zero are none", () => {
  assert.equal(textOf(new TextEncoder().encode("loss: 0.1 ✓").subarray(0, -1)), "loss: 0.1 ");
  assert.equal(textOf(new Uint8Array([80, 75, 0, 4])), undefined);
});

test("of each rank it is told since when its files are stored and for how long, or why not", () => {
  const now = Date.parse("2026-01-31T09:30:00Z") / 1_000;
  const stored = { attempt: 1, rank: 0, is_stored: true, message: "", store_time: "2026-01-31T07:30:00Z" };
  assert.equal(plain(rankWords(stored, false, now)), "Stored 2 h ago (attempt 1).");
  assert.match(plain(rankWords({ ...stored, drop_time: "2026-03-02T07:30:00Z" }, false, now)), /^Stored 2 h ago, kept until 2 Mar 2026, \d\d:30:00 \(attempt 1\)\.$/);
  const lost = { attempt: 2, rank: 1, is_stored: false, message: "node n1 brings it" };
  assert.equal(plain(rankWords(lost, true, now)), "Rank 1: nothing is stored: node n1 brings it (attempt 2).");
});
