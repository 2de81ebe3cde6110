"""Checking a launch with a real keeper: the same answer as launching it would have, and nothing is started."""

from __future__ import annotations

from node_agent.core.launch import Launch, NotRun, Refusal
from node_agent.core.outcome import AttemptPhase, AttemptView
from tests.node_agent.keeper.keeping import Agent, Node


async def answer_of(agent: Agent, launch: Launch) -> Refusal | NotRun | None:
    """What launching it says against it."""
    answer = await agent.keepers.launch(launch)
    if isinstance(answer, Refusal):
        return answer
    end = (await agent.view(launch.key)).end
    return NotRun(end.failure, end.detail) if end is not None and end.failure is not None else None


COMMANDS = [
    ["no-such-command"],
    ["./no-such-file"],
    ["./plain"],
    ["plain"],
    ["./folder"],
    [""],
    ["/bin/true", "x" * 131_072],
    ["/bin/true", *["x" * 100_000] * 70],
    ["/bin/true"],
    ["bin/hello"],
    ["hello"],
]


async def test_a_check_answers_as_the_launch_does_and_starts_nothing(node: Node) -> None:
    (node.cwd / "plain").write_text("echo never\n")
    (node.cwd / "folder").mkdir()
    (node.cwd / "bin").mkdir()
    (node.cwd / "bin" / "hello").symlink_to("/bin/true")
    agent = await node.open()
    launches = [node.launch(number, *argv, env={"PATH": ".:bin:/bin"}) for number, argv in enumerate(COMMANDS, 1)]
    checked = [await agent.keepers.check(launch) for launch in launches]
    assert await agent.keepers.inventory() == ()
    assert checked == [await answer_of(agent, launch) for launch in launches]
    assert checked.count(None) == 3


async def test_a_check_without_its_folder_is_refused_like_the_launch(node: Node) -> None:
    agent = await node.open()
    launch = node.launch(1, "/bin/true", cwd=str(node.cwd / "missing"))
    assert await agent.keepers.check(launch) == await agent.keepers.launch(launch)


async def test_a_check_of_what_was_launched_tells_what_became_of_it_also_by_its_tombstone(node: Node) -> None:
    agent = await node.open()
    launch = node.shell(1, "exit 4")
    end = await agent.end(await agent.start(launch))
    known = await agent.keepers.check(launch)
    assert isinstance(known, AttemptView) and known.end == end
    await agent.keepers.forget(launch.key)
    for build in ("1", "2"):  # the second is another keeper's
        agent = await node.open(build)
        buried = await agent.keepers.check(launch)
        assert isinstance(buried, AttemptView)
        assert (buried.phase, buried.end) == (AttemptPhase.FORGOTTEN, end)
