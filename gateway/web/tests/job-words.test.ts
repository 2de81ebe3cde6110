import assert from "node:assert/strict";
import { test } from "node:test";

import { watchedWords } from "../src/dashboard/job/stats.ts";
import { atLimitWords, commandWords, endWords, lasted, listed, placeWords, processWords, requestWords, size } from "../src/dashboard/job/words.ts";
import { seconds, time } from "../src/dashboard/values.ts";
import type { DeviceRequest, GetJobStatsResponse, JobSpec, Partly, PlacedRank } from "../src/generated/messages.ts";
import { partly } from "./messages.ts";

const plain = (text: string): string => text.replaceAll("\u00a0", " ");

test("an end is told by its sentence, and by its code where that does not say it", () => {
  const said = (exit_message: string, exit_reason: string, exit?: { code?: number; signal?: number }): string =>
    plain(endWords({ exit_message, exit_reason, ...(exit ? { exit } : {}) }));
  assert.equal(said("exited with code 3", "EXITED", { code: 3 }), "exited with code 3");
  assert.equal(said("the time limit of 1 h was over", "TIME_LIMIT", { signal: 15 }), "the time limit of 1 h was over (ended by signal 15 (SIGTERM))");
  assert.equal(said("", "EXITED", { code: 0 }), "exit code 0");
  assert.equal(said("", "NODE_LOST"), "node lost");
  assert.equal(said("", ""), "");
});

test("what a time limit does beside ending an attempt is told in a line", () => {
  const said = (spec: Partly<JobSpec>): string => plain(atLimitWords(partly(spec)));
  assert.equal(said({ requeue_on_timeout: false }), "");
  assert.equal(said({ limit_signal: { signal: 10, before: "300s" } }), "SIGUSR1 5 min before");
  assert.equal(said({ limit_signal: { signal: 40, leader_only: true }, requeue_on_timeout: true }), "signal 40 to the process that was started 1 min before, then queued again");
});

test("niceness and limits of a job's processes are told in a line", () => {
  const said = (settings: Partly<NonNullable<JobSpec["process"]>>): string => plain(processWords(partly<NonNullable<JobSpec["process"]>>(settings)));
  assert.equal(processWords(undefined), "");
  assert.equal(said({ rlimits: [], nice: 0 }), "");
  assert.equal(said({ rlimits: [], nice: 5 }), "niceness 5");
  const rlimits = [{ name: "NOFILE", soft: "4096", hard: "8192" }, { name: "CORE", soft: "-1" }, { name: "STACK", soft: "0", hard: "-1" }];
  assert.equal(said({ rlimits, nice: 19 }), "niceness 19; limits: NOFILE 4096, up to 8192; CORE none; STACK 0, which it may lift");
});

test("spans and sizes are told as people tell them", () => {
  assert.deepEqual([-1, 0.42, 9.96, 59.6, 190, 7_500, 86_400, 273_600].map((each) => plain(lasted(each))), [
    "0 s", "0.4 s", "10 s", "1 min", "3 min 10 s", "2 h 5 min", "1 d", "3 d 4 h",
  ]);
  assert.deepEqual(["0", 999, "1234567", 80e9, "141000000000"].map((each) => plain(size(each))), ["0 B", "999 B", "1.2 MB", "80 GB", "141 GB"]);
});

test("devices and requests are told in few words", () => {
  assert.deepEqual([[], [0], [1, 0], [0, 1, 2, 3, 6]].map(listed), ["", "0", "0 and 1", "0–3 and 6"]);
  const rank = (node: string, device_indices: number[]): PlacedRank =>
    partly({ node, device_indices });
  assert.equal(plain(placeWords([rank("n1", [0, 1]), rank("n2", [])])), "n1: GPU 0 and 1; n2, no GPU");
  const spec = (devices: readonly Partly<DeviceRequest>[]): JobSpec => partly({ devices });
  assert.equal(plain(requestWords(spec([{ count: 2, min_memory_bytes: "10000000000", models: [] }]))), "2 GPUs with 10 GB free each");
  assert.equal(plain(requestWords(spec([{ count: 1, min_memory_bytes: "0", models: ["H200"], share: { milli: 250 } }]))), "25 % of 1 H200 GPU");
  assert.equal(requestWords(spec([])), "no GPU");
  assert.equal(commandWords(["sh", "-c", "echo it's; exit 3", "./train.py"]), "sh -c 'echo it'\\''s; exit 3' ./train.py");
});

test("what a node told before it was lost is not said to be all", () => {
  const said = (more: Partly<GetJobStatsResponse>): string => plain(watchedWords(partly({ monitoring_duration: "190s", is_final: true, is_incomplete: false, ...more })));
  assert.equal(said({}), "3 min 10 s");
  assert.equal(said({ is_final: false }), "3 min 10 s so far");
  assert.equal(said({ is_incomplete: true }), "3 min 10 s, as far as its node told before it was lost");
});

test("times and spans of the wire become seconds", () => {
  assert.equal(time("1970-01-01T00:00:01.500Z"), 1.5);
  assert.equal(time(undefined), undefined);
  assert.equal(time("soon"), undefined);
  assert.equal(seconds("3600.250s"), 3_600.25);
});
