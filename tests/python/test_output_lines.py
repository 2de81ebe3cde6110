"""Output becomes lines of text, read no further ahead than somebody takes them."""

from __future__ import annotations

import asyncio

from gpufleet.api.output_lines import LINE_CHARS_MAX, Lines


async def test_bytes_become_lines_and_a_character_that_was_cut_is_whole() -> None:
    lines = Lines(10)
    euro = "€\n".encode()
    lines.write(0, 1, b"one\ntw" + euro[:1])
    lines.write(0, 1, euro[1:] + b"last")
    lines.finish()
    assert [line async for line in lines.all()] == ["one\n", "tw€\n", "last"]


async def test_lines_of_several_ranks_say_which_and_a_long_line_comes_in_parts() -> None:
    lines = Lines(10)
    lines.has_ranks(2)
    lines.write(1, 1, b"x" * (LINE_CHARS_MAX + 1))
    lines.finish()
    assert [len(line) async for line in lines.all()] == [LINE_CHARS_MAX + 4, 5]


async def test_reading_rests_while_nobody_takes_the_lines() -> None:
    lines = Lines(2)
    lines.write(0, 1, b"a\nb\n")
    reading = asyncio.create_task(lines.room())
    await asyncio.sleep(0)
    assert not reading.done()
    assert await anext(aiter(lines.all())) == "a\n"
    await reading
