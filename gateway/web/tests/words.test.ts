import assert from "node:assert/strict";
import { test } from "node:test";

import { accessWords, clock, ending, lineWords, span, spokenSpan, type Line } from "../src/words.ts";

test("spans are told as people tell them, and never too short", () => {
  const told = [-1, 0, 0.2, 59, 59.2, 60, 70, 599, 600.5, 3_599, 3_600, 7_500].map((seconds) => span(seconds).replaceAll("\u00a0", " "));
  assert.deepEqual(told, [
    "0 s", "0 s", "1 s", "59 s", "1 min", "1 min", "1 min 10 s", "9 min 59 s", "11 min", "1 h", "1 h", "2 h 5 min",
  ]);
  assert.deepEqual([1, 60, 61, 130].map(spokenSpan), [
    "1 second", "1 minute", "1 minute 1 second", "2 minutes 10 seconds",
  ]);
  assert.deepEqual([0, 9.1, 75].map(clock), ["0:00", "0:10", "1:15"]);
});

test("a card says who may join, where that is not everybody", () => {
  const words = (["open", "pass-phrase", "login", undefined] as const).map(accessWords);
  assert.deepEqual(words, ["", "Needs a pass phrase", "Needs a login", ""]);
});

test("a line's words say whether one starts or waits", () => {
  const line: Line = {
    name: "canvas", waiting: 0, turns: 1, seats: 2, free: 1, state: "ready", progress: 0, waits_for: "", turn_s: 60,
    title: "", about: "", controls: "", keys: [], picture: "", access: "open",
  };
  assert.deepEqual(lineWords(line), { tone: "free", text: "Free now", more: "1 of 2 seats taken", action: "Start" });
  assert.deepEqual(lineWords({ ...line, free: 0, turns: 2, waiting: 3 }), {
    tone: "busy", text: "3 people waiting", more: "2 of 2 seats taken", action: "Stand in line",
  });
  assert.equal(lineWords({ ...line, state: "loading", progress: 0.4 }).text, "Loading 40 %");
  assert.equal(lineWords({ ...line, state: "failed" }).tone, "failed");
  assert.equal(lineWords({ ...line, state: "asleep", waiting: 1 }).more, "1 person waiting");
  assert.equal(lineWords({ ...line, state: "queued", waits_for: "DEVICES_IN_USE" }).text, "Waits for a GPU");
  assert.equal(lineWords({ ...line, state: "queued", waits_for: "CPUS_IN_USE" }).text, "Waits for a CPU");
  assert.equal(lineWords({ ...line, state: "queued", waits_for: "NEW_IN_2030" }).text, "Waits for a machine with room");
});

test("every end has words, one that this page does not know too", () => {
  assert.equal(ending("IDLE").mayJoinAgain, true);
  assert.equal(ending("MODEL_NOT_FOUND").mayJoinAgain, false);
  assert.equal(ending("SOMETHING_NEW").title, "The session has ended");
});
