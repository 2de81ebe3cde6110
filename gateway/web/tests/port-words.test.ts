import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOfPort, readPort } from "../src/dashboard/job/port-words.ts";

test("a port is read as it is typed, and what is none leads nowhere", () => {
  assert.deepEqual([" 8888 ", "1", "65535"].map(readPort), [8_888, 1, 65_535]);
  for (const wrong of ["", "0", "65536", "80/../x", "8.8", "-1", "1e3", "0x50"]) assert.equal(readPort(wrong), undefined, wrong);
});

test("a port opens below the gateway's own address", () => {
  assert.equal(addressOfPort(41, 8_888, 0), "jobs/41/ports/8888/");
  assert.equal(addressOfPort(41, 8_888, 2), "jobs/41/ranks/2/ports/8888/");
});
