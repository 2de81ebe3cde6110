import assert from "node:assert/strict";
import { test } from "node:test";

import { HEADER_BYTES, TEXT_CHARS_MAX, pieces, readFrame, readText } from "../src/wire.ts";

function frame(version: number, encoding: number, picture: readonly number[]): ArrayBuffer {
  const data = new ArrayBuffer(HEADER_BYTES + picture.length);
  const view = new DataView(data);
  view.setUint8(0, version);
  view.setUint8(1, encoding);
  view.setUint16(2, 512);
  view.setUint16(4, 384);
  view.setUint32(8, 4_000_000_000);
  view.setUint32(12, 9);
  view.setUint32(16, 1_234);
  new Uint8Array(data, HEADER_BYTES).set(picture);
  return data;
}

test("a frame is its header and the picture behind it", () => {
  const read = readFrame(frame(1, 2, [7, 8, 9]));
  assert.ok(read !== null);
  const { picture, ...header } = read;
  assert.deepEqual(header, {
    width: 512,
    height: 384,
    number: 4_000_000_000,
    newestInput: 9,
    computeMs: 1.234,
    mediaType: "image/png",
  });
  assert.deepEqual([...picture], [7, 8, 9]);
});

test("a frame of another version, of an unknown encoding or without a picture is none", () => {
  assert.equal(readFrame(frame(2, 1, [1])), null);
  assert.equal(readFrame(frame(1, 4, [1])), null);
  assert.equal(readFrame(frame(1, 1, [])), null);
  assert.equal(readFrame(new ArrayBuffer(3)), null);
});

test("a text that this page does not know is passed over", () => {
  assert.deepEqual(readText('{"type":"pong","number":3}'), { type: "pong", number: 3 });
  for (const text of ["", "[]", "null", '{"type":"dance"}', '{"type":"place","place":"1"}', '{"type":"end"}']) {
    assert.equal(readText(text), null, text);
  }
});

test("a long text goes in pieces, and no character is cut in two", () => {
  assert.deepEqual(pieces(""), []);
  assert.deepEqual(pieces("schön"), ["schön"]);
  const long = "a" + "😀".repeat(TEXT_CHARS_MAX);
  const cut = pieces(long);
  assert.equal(cut.join(""), long);
  assert.ok(cut.every((piece) => piece.length <= TEXT_CHARS_MAX && !/[\uD800-\uDBFF]$/.test(piece)));
});
