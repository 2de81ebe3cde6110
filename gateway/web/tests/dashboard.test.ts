import assert from "node:assert/strict";
import { test } from "node:test";

import { Fleet, passes } from "../src/dashboard/devices/fleet.ts";
import { holding } from "../src/dashboard/devices/row.ts";
import { Lines, countsInWords } from "../src/dashboard/queue/lines.ts";
import { addressOf, routeOf } from "../src/dashboard/router.ts";
import { accessWords, cpuWords, fallbackWords, frames, groupWords } from "../src/dashboard/sessions/words.ts";
import { EMPTY, draftOf, fieldOf, keptOf, lineOf, specOf } from "../src/dashboard/submit/draft.ts";
import { readDuration, readSize, writeDuration, writeSize } from "../src/dashboard/units.ts";
import { accountWords, ending, gpusAsked, gpusHad, itemsInWords, lasting, likely, placeOf, sentence, shortModel } from "../src/dashboard/words.ts";
import type { ArrayCounts, Attempt, CountedRequests, GroupState, HttpService, Job, JobSpec, JobState, Model, ModelAccess, NodeDevice, Partly, QueueCounts, RunsAs, WatchDevicesResponse } from "../src/generated/messages.ts";
import { partly } from "./messages.ts";

test("addresses lead to views and back", () => {
  assert.deepEqual(routeOf("#/job/12"), { view: "job", parameter: "12" });
  assert.deepEqual(routeOf(addressOf("usage", "a b/c")), { view: "usage", parameter: "a b/c" });
  for (const other of ["", "#", "#/", "#/nowhere", "#view"]) assert.equal(routeOf(other).view, "devices");
  assert.deepEqual(routeOf("#/job/%"), { view: "job", parameter: "%" });
});

test("GPUs are called as people call them", () => {
  const names: Record<string, string> = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA A100-SXM4-80GB": "A100",
    "NVIDIA A100-PCIE-40GB": "A100",
    "NVIDIA H200": "H200",
    "NVIDIA H100 PCIe": "H100",
    "NVIDIA GH200 480GB": "GH200",
    "Tesla V100-SXM2-32GB": "V100",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX A6000": "RTX A6000",
    "AMD Instinct MI300X": "MI300X",
    "gpufleet virtual GPU": "virtual",
    "NVIDIA Graphics Device": "NVIDIA Graphics Device",
    "": "",
  };
  for (const [name, short] of Object.entries(names)) assert.equal(shortModel(name), short, name);
});

const SPEC = partly<JobSpec>({ argv: ["python", "train.py"], devices: [] });

function job(state: JobState, more: Partly<Job> = {}): Job {
  return partly({ id: "7", user: "ann", spec: SPEC, state, attempts: [], ...more });
}

test("a job's GPUs, place and end are told in a few words", () => {
  const devices = [{ name: "NVIDIA H200" }, { name: "NVIDIA H200" }];
  assert.equal(gpusHad(job("JOB_STATE_RUNNING", { attempts: [{ number: 1, gpu_info: { count: 2, devices } }] })), "2 ×\u00a0H200");
  assert.equal(gpusHad(job("JOB_STATE_SUCCEEDED")), "");
  const half = { count: 1, devices: [{ name: "NVIDIA H200", share: { milli: 500 } }] };
  assert.equal(gpusHad(job("JOB_STATE_RUNNING", { attempts: [{ number: 1, gpu_info: half }] })), "0.5 ×\u00a0H200");
  assert.equal(gpusAsked(partly<JobSpec>({ ...SPEC, devices: [{ count: 2, share: { milli: 500 } }] })), "2×0.5");
  assert.equal(gpusAsked(SPEC), "");
  assert.equal(placeOf(partly<Attempt>({ ranks: [{ node: "n1", device_indices: [0, 3] }] })), "n1:0,3");
  assert.equal(placeOf(partly<Attempt>({ ranks: ["a", "b", "c", "d"].map((node) => ({ node })) })), "a, b and 2 more");
  assert.equal(ending(job("JOB_STATE_FAILED", { exit_reason: "EXITED", exit: { code: 3 } })), "exit 3");
  assert.equal(ending(job("JOB_STATE_FAILED", { exit_reason: "EXITED", exit: { signal: 9 } })), "signal 9");
  assert.equal(ending(job("JOB_STATE_FAILED", { exit_reason: "NODE_LOST" })), "node lost");
  assert.equal(ending(job("JOB_STATE_TIMED_OUT")), "time limit");
  assert.equal(itemsInWords(partly<ArrayCounts>({ items: 1_000, running: 2, timed_out: 1 })), "1,000\u00a0items: 2 running, 1 timed out");
  assert.deepEqual([59, 61, 3_700, 90_000].map((each) => lasting(each).replaceAll("\u00a0", " ")), ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
  assert.equal(sentence("it waits"), "It waits.");
});

test("when a job likely starts is told as a range, and not at all where nobody knows", () => {
  const at = (minutes: number): string => new Date(minutes * 60_000).toISOString();
  const said = (from: number | undefined, to: number | undefined): string => {
    const ends = { ...(from === undefined ? {} : { likely_earliest_start_time: at(from) }), ...(to === undefined ? {} : { likely_latest_start_time: at(to) }) };
    return likely(ends, 60_000 * 100).replaceAll("\u00a0", " ");
  };
  assert.equal(said(110, 150), "between 10 min and 50 min from now, 9 of 10 such jobs");
  assert.equal(said(100, 150), "within 50 min, 9 of 10 such jobs");
  assert.equal(said(90, 150), "within 50 min, 9 of 10 such jobs", "its beginning has gone by");
  assert.equal(said(150, 150), "within 50 min, 9 of 10 such jobs", "both ends are told alike");
  assert.equal(said(110.01, 150.5), "between 11 min and 51 min from now, 9 of 10 such jobs", "no promise to the second");
  assert.equal(said(101.5, 103), "between 1 min 30 s and 3 min from now, 9 of 10 such jobs");
  assert.equal(said(90, 99), "later than 9 of 10 such jobs", "all of it has gone by");
  assert.equal(said(undefined, undefined), "");
  assert.equal(said(110, undefined), "");
});

test("a rate of frames is told as people say it", () => {
  assert.deepEqual([0.96, 1.5, 24.4].map((rate) => frames(rate).replaceAll("\u00a0", " ")), ["1 frame/s", "1.5 frames/s", "24 frames/s"]);
});

test("each model says who may join it", () => {
  const said = (access?: ModelAccess): string => accessWords(access === undefined ? {} : partly({ limits: { access } }));
  assert.equal(said("MODEL_ACCESS_OPEN"), "open to everybody");
  assert.equal(said(), "open to everybody");
  assert.equal(said("MODEL_ACCESS_PASS_PHRASE"), "for who has its pass phrase");
  assert.equal(said("MODEL_ACCESS_LOGIN"), "for who is logged in");
});

test("a program that shares GPUs says for whom it sleeps", () => {
  const said = (group: string, state: GroupState, message: string): string => groupWords(partly({ exclusive_group: group, in_group: { state, message } }));
  assert.equal(said("small", "GROUP_STATE_ASLEEP", "gave its GPU to chat"), "asleep in group small: gave its GPU to chat");
  assert.equal(said("small", "GROUP_STATE_ASLEEP", ""), "asleep in group small");
  assert.equal(said("small", "GROUP_STATE_WAITING", "waits for the GPU of chat"), "in group small: waits for the GPU of chat");
  assert.equal(said("small", "GROUP_STATE_AWAKE", ""), "awake in group small");
  assert.equal(groupWords({ exclusive_group: "" }), "");
});

test("times and sizes are read as gpuctl reads them, and written so that they are read again", () => {
  const times: Record<string, number> = { "90s": 90, "1h30m": 5_400, "2d": 172_800, "1:30:00": 5_400, "2-01:00:00": 176_400, "5min": 300 };
  for (const [text, seconds] of Object.entries(times)) assert.deepEqual(readDuration(text), { value: seconds }, text);
  for (const text of ["90", "1x", "h", "1h1h", "-1s", ""]) assert.ok("wrong" in readDuration(text), text);
  const sizes: Record<string, number> = { "8GB": 8e9, "8gib": 2 ** 33, "1.5TB": 1.5e12, "512 B": 512 };
  for (const [text, bytes] of Object.entries(sizes)) assert.deepEqual(readSize(text), { value: bytes }, text);
  for (const text of ["8", "8G", "GB", "0.3B", ""]) assert.ok("wrong" in readSize(text), text);
  for (const seconds of [45, 90, 5_400, 176_400]) assert.deepEqual(readDuration(writeDuration(seconds)), { value: seconds });
  for (const bytes of [8e9, 2 ** 33, 1.5e12, 512, 12_345_678]) assert.deepEqual(readSize(writeSize(bytes)), { value: bytes });
});

test("a draft becomes a spec, or says at each field what is wrong", () => {
  const draft = { ...EMPTY, command: "python train.py | tee log", cwd: "/work", gpus: "2", min_memory: "8GB", time_limit: "4h", model: "h100, a100" };
  const made = specOf({ ...draft, env: "A=1\nB=x=y\n" }, null);
  assert.ok("spec" in made);
  assert.deepEqual(made.spec.argv, ["/bin/sh", "-c", "python train.py | tee log"]);
  assert.deepEqual(made.spec.devices, [{ count: 2, min_memory_bytes: "8000000000", models: ["h100", "a100"] }]);
  assert.equal(made.spec.time_limit, "14400s");
  assert.deepEqual(made.spec.env, { A: "1", B: "x=y" });
  const wrong = specOf({ ...draft, command: " ", cwd: "x", gpus: "two", min_memory: "8", time_limit: "4", env: "nothing" }, null);
  assert.ok("wrong" in wrong);
  assert.deepEqual(Object.keys(wrong.wrong).sort(), ["command", "cwd", "env", "gpus", "min_memory", "model", "time_limit"]);
  const none = specOf({ ...draft, gpus: "0", model: "" }, null);
  assert.ok("wrong" in none && none.wrong.min_memory !== undefined);
});

test("a job that is submitted again is what it was, but for what it waited for", () => {
  const before = partly<JobSpec>({
    argv: ["python", "it's.py", "--x=1"],
    name: "train",
    cwd: "/work",
    devices: [{ count: 2, min_memory_bytes: "8000000000", models: [], share: { milli: 0 } }],
    time_limit: "5400s",
    band: "BAND_HIGH",
    labels: { team: "a" },
    env: {},
    after: [{ job_id: "3" }],
    begin_time: "2026-01-01T00:00:00Z",
    trace_context: "00-x",
    kind: "JOB_KIND_BATCH",
    serves: "",
    hidden_fields: [],
    retries: 2,
    is_held: true,
  });
  const draft = draftOf(before);
  assert.equal(draft.command, `python 'it'"'"'s.py' --x=1`);
  assert.deepEqual([draft.gpus, draft.min_memory, draft.time_limit, draft.is_held], ["2", "8GB", "1h30m", ""]);
  assert.deepEqual(keptOf(before), ["labels", "retries"]);
  const made = specOf(draft, before);
  assert.ok("spec" in made);
  const { spec } = made;
  assert.deepEqual(spec.argv, before.argv);
  assert.deepEqual([spec.labels, spec.retries, spec.band, spec.time_limit, spec.is_held], [{ team: "a" }, 2, "BAND_HIGH", "5400s", false]);
  for (const gone of ["after", "begin_time", "trace_context", "kind", "serves"]) assert.ok(!(gone in spec), gone);
  const changed = specOf({ ...draft, command: "python other.py", time_limit: "" }, before);
  assert.ok("spec" in changed && !("time_limit" in changed.spec));
  assert.deepEqual(changed.spec.argv, ["/bin/sh", "-c", "python other.py"]);
  assert.equal(lineOf(["/bin/sh", "-c", "a | b"]), "a | b");
});

test("what a time limit does goes along with the limit, and a folder of another machine never", () => {
  const before = partly<JobSpec>({ argv: ["./train"], name: "train", devices: [], env: {}, cwd: "/w", time_limit: "60s", limit_signal: { signal: 10 }, requeue_on_timeout: true, output_file: "a.log", submit_cwd: "/home/ann" });
  const limited = specOf(draftOf(before), before);
  assert.ok("spec" in limited);
  assert.deepEqual([limited.spec.limit_signal, limited.spec.requeue_on_timeout, limited.spec.output_file], [{ signal: 10 }, true, "a.log"]);
  assert.ok(!("submit_cwd" in limited.spec));
  assert.deepEqual(keptOf(before), ["the signal before its time limit", "that its time limit queues it again", "the copy of its output"]);
  const unlimited = specOf({ ...draftOf(before), time_limit: "" }, before);
  assert.ok("spec" in unlimited && !("limit_signal" in unlimited.spec) && !("requeue_on_timeout" in unlimited.spec));
});

test("one like it runs its processes as they ran, and what stays without a field is told", () => {
  const process = { rlimits: [{ name: "NOFILE", soft: "4096", hard: "8192" }], nice: 7 };
  const before = partly<JobSpec>({
    argv: ["./train"], name: "train", env: {}, cwd: "/w", process, grace: "5s", no_span: true, input: "INPUT_MODE_PIPE", gpu_mode: "GPU_MODE_REQUIRED",
    no_gpu_selection: true, blame_limit: 2, no_warnings: true, sampling_interval: "5s", requeue_fence: "60s",
    devices: [{ count: 1, min_memory_bytes: "0", models: [], allow_busy: true, share: { milli: 500, memory_bytes: "0" } }],
  });
  const made = specOf(draftOf(before), before);
  assert.ok("spec" in made);
  assert.deepEqual(made.spec.process, process);
  assert.deepEqual(keptOf(before), [
    "that it is not spread over nodes", "that its GPUs are taken in plain order", "niceness and limits of its processes", "its input",
    "the time that it has to stop", "how many lost nodes it outlives", "that it is not warned", "how often its use is read",
    "how long a lost node is waited for", "its share of each GPU", "that busy GPUs will do",
  ]);
  const usual = partly<JobSpec>({ devices: [], grace: "30s", input: "INPUT_MODE_UNSPECIFIED", gpu_mode: "GPU_MODE_REQUIRED", process: { rlimits: [], nice: 0 } });
  assert.deepEqual(keptOf(usual), []);
});

test("a job says whether it may do without a GPU, and what decides that", () => {
  const made = specOf({ ...EMPTY, command: "x", cwd: "/", gpu_mode: "GPU_MODE_AUTO", content_type: " audio/mpeg " }, null);
  assert.ok("spec" in made);
  assert.deepEqual([made.spec.gpu_mode, made.spec.content_type], ["GPU_MODE_AUTO", "audio/mpeg"]);
  const undecided = specOf({ ...EMPTY, command: "x", cwd: "/", gpu_mode: "GPU_MODE_AUTO" }, null);
  assert.ok("wrong" in undecided && undecided.wrong.content_type);
  assert.equal(fieldOf("specs[0].gpu_mode"), "gpu_mode");
  const again = draftOf(partly<JobSpec>({ argv: ["x"], devices: [], env: {}, gpu_mode: "GPU_MODE_PREFERRED", content_type: "image/png" }));
  assert.deepEqual([again.gpu_mode, again.content_type], ["GPU_MODE_PREFERRED", "image/png"]);
});

test("a model says what its requests fall back to", () => {
  const said = (http: Partly<HttpService>) => cpuWords(partly<Model>({ http }));
  assert.equal(cpuWords({}), "");
  assert.equal(said({ cpu_model: "", gpu_mode: "GPU_MODE_REQUIRED" }), "");
  assert.equal(said({ cpu_model: "small", gpu_mode: "GPU_MODE_PREFERRED" }), "falls back to small");
  assert.equal(said({ cpu_model: "small", gpu_mode: "GPU_MODE_REQUIRED" }), "falls back to small for requests that allow it");
});

test("a model says which share of its requests fell back, and of more than a twentieth that it is much", () => {
  const faces = partly<Model>({ name: "faces", http: { cpu_model: "small" } });
  const row = (model: string, request_count: string, fallback_count: string) => partly<CountedRequests>({ model, request_count, fallback_count });
  const said = (...rows: CountedRequests[]) => fallbackWords(faces, rows);
  assert.deepEqual(said(), { words: "", isMuch: false });
  assert.deepEqual(said(row("small", "5", "0")), { words: "", isMuch: false });
  assert.deepEqual(said(row("faces", "40", "10"), row("faces", "50", "0"), row("small", "10", "0")), { words: "10\u00a0% of the last hour fell back", isMuch: true });
  assert.deepEqual(said(row("faces", "95", "5")), { words: "5\u00a0% of the last hour fell back", isMuch: false });
  assert.deepEqual(said(row("faces", "0", "3")).isMuch, true);
  assert.deepEqual(fallbackWords(partly<Model>({ name: "faces" }), [row("faces", "0", "3")]).words, "");
});

test("what the scheduler refuses is said at the field that it names", () => {
  assert.equal(fieldOf("specs[0].devices[0].min_memory_bytes"), "min_memory");
  assert.equal(fieldOf("specs[0].devices[0].count"), "gpus");
  assert.equal(fieldOf("specs[0].env['A B']"), "env");
  assert.equal(fieldOf("specs[0].cwd"), "cwd");
  assert.equal(fieldOf("specs[0].notify"), null);
  assert.equal(fieldOf(""), null);
});

test("the queue keeps its order, lets go of what has ended, and tells when the order is to be read anew", () => {
  const lines = new Lines();
  const of = (id: string, state: JobState, place = 0): Job => ({ ...job(state), id, queue_position: place });
  lines.takePage([of("1", "JOB_STATE_RUNNING"), of("3", "JOB_STATE_QUEUED", 1), of("2", "JOB_STATE_QUEUED", 2)]);
  assert.equal(lines.takeJob(of("2", "JOB_STATE_QUEUED")), false);
  assert.deepEqual(lines.split("").waiting.map((each) => [each.id, each.queue_position]), [["3", 1], ["2", 2]]);
  assert.equal(lines.takeJob(of("3", "JOB_STATE_RUNNING")), true);
  assert.deepEqual(lines.split("").running.map((each) => each.id), ["1", "3"]);
  assert.equal(lines.takeJob(of("1", "JOB_STATE_SUCCEEDED")), true);
  assert.equal(lines.takeJob(of("9", "JOB_STATE_QUEUED")), true);
  assert.equal(lines.count, 3);
  assert.deepEqual(lines.split("bob"), { running: [], waiting: [] });
  for (let id = 10; id < 2_000; id += 1) {
    lines.takeJob(of(String(id), "JOB_STATE_QUEUED"));
    lines.takeJob(of(String(id), "JOB_STATE_CANCELLED"));
  }
  assert.equal(lines.count, 3);
  assert.equal(countsInWords(partly<QueueCounts>({ running: "2", starting: "0", stopping: "0", queued: "1200", held: "1" })), "2 running · 1,200 waiting · 1 held");
});

function device(node: string, index: number, more: Partly<NodeDevice> = {}): NodeDevice {
  const facts = { uuid: `${node}-${index}`, index, name: "NVIDIA H200", memory_bytes: "143771000000", is_healthy: true };
  return partly({ device: facts, node, job_id: "0", shares: [], user: "", is_free: false, ...more });
}

function change(more: Partly<WatchDevicesResponse>): WatchDevicesResponse {
  return partly({ is_whole: false, devices: [], removed_uuids: [], has_more: false, ...more });
}

test("a fleet tells which nodes have other rows, and which devices only say something new", () => {
  const fleet = new Fleet();
  const whole = fleet.take(change({ is_whole: true, devices: [device("n10", 0), device("n2", 1), device("n2", 0)] }));
  assert.deepEqual([...whole.nodes].sort(), ["n10", "n2"]);
  assert.deepEqual([...fleet.byNode().keys()], ["n2", "n10"]);
  assert.deepEqual(fleet.byNode().get("n2")?.map((each) => each.device.index), [0, 1]);
  const said = fleet.take(change({ devices: [device("n2", 0, { is_free: true, sample: { utilization_percent: 50, power_mw: "300000" } })] }));
  assert.equal(said.nodes.size, 0);
  assert.equal(said.devices.length, 1);
  assert.deepEqual(fleet.totals(), { count: 3, free: 1, load: 50, watts: 300 });
  fleet.take(change({ devices: [device("n2", 0, { is_free: true, sample: { age: "7s", utilization_percent: 50, power_mw: "300000" } })] }));
  assert.deepEqual(fleet.totals(), { count: 3, free: 1, load: null, watts: 0 }, "a node that is not heard says nothing of now");
  assert.deepEqual([...fleet.take(change({ removed_uuids: ["n2-1", "unknown"] })).nodes], ["n2"]);
  const anew = fleet.take(change({ is_whole: true, devices: [device("n3", 0)] }));
  assert.deepEqual([...anew.nodes].sort(), ["n10", "n2", "n3"]);
  assert.equal(fleet.count, 1);
});

test("a whole in pieces is taken in with its last, and the half of a stream that broke goes with the next whole", () => {
  const fleet = new Fleet();
  fleet.take(change({ is_whole: true, devices: [device("n1", 0)] }));
  for (const piece of [{ is_whole: true, devices: [device("n2", 0)], has_more: true }, { devices: [device("n2", 1)], has_more: true }]) {
    const held = fleet.take(change(piece));
    assert.deepEqual([held.nodes.size, held.devices.length], [0, 0]);
  }
  assert.deepEqual([...fleet.byNode().keys()], ["n1"]);
  fleet.take(change({ is_whole: true, devices: [device("n3", 0)], has_more: true }));
  const whole = fleet.take(change({ devices: [device("n4", 0)], has_more: false }));
  assert.deepEqual([...whole.nodes].sort(), ["n1", "n3", "n4"]);
  assert.equal(fleet.count, 2);
});

test("a device that others use is said to be so, also where nobody sees their process", () => {
  const said = (more: Partly<NodeDevice>): string => holding(device("n1", 0, more)).words;
  assert.equal(said({ is_used_by_others: true, sample: { processes: [] } }), "another program uses it");
  assert.equal(said({ is_used_by_others: false, sample: { processes: [{ is_foreign: false }] } }), "not given now");
  assert.equal(said({ is_free: true }), "free");
  assert.equal(said({ job_id: "12", user: "ann" }), "ann");
});

test("devices are found by what is written about them", () => {
  const held = device("n1", 0, { job_id: "12", user: "ann" });
  const shared = device("n1", 1, { job_id: "0", shares: [{ job_id: "13" }], user: "" });
  const free = device("n2", 0, { is_free: true, job_id: "0" });
  const sick = { ...device("n3", 0), device: { ...device("n3", 0).device, is_healthy: false } };
  const found = (text: string, shown: Parameters<typeof passes>[2]) =>
    [held, shared, free, sick].map((each) => passes(each, text, shown, "ann"));
  assert.deepEqual(found("", "all"), [true, true, true, true]);
  assert.deepEqual(found("", "free"), [false, false, true, false]);
  assert.deepEqual(found("", "busy"), [true, true, false, false]);
  assert.deepEqual(found("", "mine"), [true, false, false, false]);
  assert.deepEqual(found("", "unhealthy"), [false, false, false, true]);
  assert.deepEqual(found("#13", "all"), [false, true, false, false]);
  assert.deepEqual(found("h200", "all"), [true, true, true, true]);
  assert.deepEqual(found("N2", "all"), [false, false, true, false]);
});

test("a node says as whom jobs run there, and whose where not everybody's", () => {
  const of = (runs_as: RunsAs) => accountWords({
    runs_as, owner: "ada", account: "lab", is_from_before: false, why: "", ends_all_by: "", limits: [], limits_note: "", uid_first: "0", uids_note: "", user_namespaces: "",
  });
  assert.deepEqual(
    (["RUNS_AS_RANGE", "RUNS_AS_ACCOUNTS", "RUNS_AS_OWNER", "RUNS_AS_SHARED", "RUNS_AS_UNSPECIFIED"] as const).map(of),
    [
      "jobs run as a uid of their user's", "jobs run as their user's account", "jobs of ada alone, as lab",
      "jobs of all users run as lab", "",
    ],
  );
});
