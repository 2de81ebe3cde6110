import assert from "node:assert/strict";
import { test } from "node:test";

import { PLACE_KEPT_MS, after, begin, isLive, type Happened, type Session } from "../src/state.ts";
import type { End, Notice, Place, Turn } from "../src/wire.ts";

const place = (more: Partial<Place> = {}): Happened => ({
  kind: "told",
  message: { type: "place", place: 2, line_length: 3, ...more },
});
const turn = (more: Partial<Turn> = {}): Happened => ({
  kind: "told",
  message: { type: "turn", session: "s1", encoding: "jpeg", is_resumed: false, ...more },
});
const notice = (reason: string, remaining_s?: number): Happened => {
  const message: Notice = { type: "notice", reason, message: "words", ...(remaining_s === undefined ? {} : { remaining_s }) };
  return { kind: "told", message };
};
const end = (reason: string): Happened => ({ kind: "told", message: { type: "end", reason, message: "words" } satisfies End });
const course = (...all: Happened[]): Session => all.reduce((session, each) => after(session, each, 1_000), begin("canvas", ""));

test("from the line to a turn to its end", () => {
  let session = course({ kind: "opened" }, place({ place_key: "k", estimated_wait_s: 4, longest_wait_s: 9.5 }));
  assert.equal(session.key, "k");
  assert.deepEqual(session.phase, {
    kind: "waiting",
    place: 2,
    lineLength: 3,
    estimateAt: 5_000,
    boundAt: 10_500,
    cause: "",
    why: "",
  });
  session = after(session, turn({ worker: "gpu1:8001", move_min: 0.004 }), 2_000);
  assert.deepEqual(session.phase, { kind: "turn", session: "s1", worker: "gpu1:8001", limit: null, idle: null, moveMin: 0.004 });
  assert.equal(session.key, "k", "a later message without a key leaves the one there is");
  session = after(session, end("TURN_ENDED"), 3_000);
  assert.deepEqual(session.phase, { kind: "ended", reason: "TURN_ENDED", message: "words" });
  assert.equal(isLive(session), false);
  assert.equal(after(session, turn(), 4_000), session, "behind the end nothing changes any more");
});

test("a limit is told, moved and lifted; the server's word ends an idle warning, and nothing else", () => {
  let session = course({ kind: "opened" }, turn(), notice("TURN_LIMITED", 70), notice("IDLE_WARNING", 10));
  assert.ok(session.phase.kind === "turn");
  assert.deepEqual(session.phase.limit, { reason: "TURN_LIMITED", endsAt: 71_000 });
  assert.deepEqual(session.phase.idle, { reason: "IDLE_WARNING", endsAt: 11_000 });
  session = after(session, notice("IDLE_WARNING", 10), 2_000);
  assert.ok(session.phase.kind === "turn" && session.phase.idle?.endsAt === 12_000, "an end that has moved is told again");
  session = after(session, notice("IDLE_OVER"), 5_000);
  session = after(session, notice("TURN_WARNING", 25), 46_000);
  assert.ok(session.phase.kind === "turn" && session.phase.idle === null);
  assert.deepEqual(session.phase.limit, { reason: "TURN_WARNING", endsAt: 71_000 });
  session = after(session, notice("TURN_UNLIMITED"), 50_000);
  assert.ok(session.phase.kind === "turn" && session.phase.limit === null);
});

test("a lost worker makes a place of a turn, and says why", () => {
  const session = course({ kind: "opened" }, turn(), notice("WORKER_LOST"), place({ place: 1 }));
  assert.ok(session.phase.kind === "waiting");
  assert.deepEqual([session.phase.place, session.phase.why], [1, "Words."]);
});

test("who comes back has the limits that are told again, and no others", () => {
  let session = course({ kind: "opened" }, turn(), notice("TURN_LIMITED", 70), { kind: "lost", isFull: false });
  assert.deepEqual([session.link, session.lostAt], ["lost", 1_000]);
  assert.equal(after(session, { kind: "lost", isFull: false }, 9_000).lostAt, 1_000, "lost since the first time");
  session = after(session, { kind: "opened" }, 4_000);
  assert.ok(session.phase.kind === "turn" && session.phase.limit === null);
  session = after(after(session, notice("TURN_GRACE", 6), 4_100), turn({ is_resumed: true }), 4_200);
  assert.ok(session.phase.kind === "turn");
  assert.deepEqual(session.phase.limit, { reason: "TURN_GRACE", endsAt: 10_100 });
});

test("a page that loaded anew may be told its limit before its stream is open", () => {
  const session = course({ kind: "opened" }, notice("TURN_WARNING", 12), turn({ is_resumed: true }));
  assert.ok(session.phase.kind === "turn");
  assert.deepEqual([session.phase.session, session.phase.limit?.endsAt], ["s1", 13_000]);
});

test("after a minute there is nothing to come back to, and nobody stands in a line unasked", () => {
  const session = course({ kind: "opened" }, turn(), { kind: "lost", isFull: false });
  assert.ok(isLive(after(session, { kind: "ticked" }, 1_000 + PLACE_KEPT_MS)));
  const late = after(session, { kind: "ticked" }, 1_001 + PLACE_KEPT_MS);
  assert.deepEqual(late.phase, { kind: "ended", reason: "DISCONNECTED", message: "" });
});

test("a gateway that is full is told until it takes one in", () => {
  const session = course({ kind: "lost", isFull: true });
  assert.deepEqual([session.isFull, session.phase.kind], [true, "joining"]);
  assert.ok(isLive(after(session, { kind: "ticked" }, 10 * PLACE_KEPT_MS)), "who has no place yet has none to lose");
  assert.equal(after(session, { kind: "opened" }, 2_000).isFull, false);
});

test("a scheduler that is away is told until it is heard again", () => {
  const session = course({ kind: "opened" }, turn(), notice("SCHEDULER_AWAY"));
  assert.ok(session.isSchedulerAway);
  assert.equal(after(session, turn({ is_resumed: true }), 2_000).isSchedulerAway, false);
});
