"""What each option of `submit` means for arrays, several nodes, later attempts and containers: the rows of a table.

`options_table.py` writes them to docs/options.md. Where an option has a feature, `combinations.py` decides what is
refused: such a cell is empty here.
"""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """A row of the table; `feature` is what rows of `features.py` try it by, as "name" or "name=level"."""

    arrays: str
    nodes: str
    attempts: str
    containers: str
    feature: str = ""


SAME = "the same"
EACH, EACH_NODE, AGAIN = "for each item", "on each node", "asked for again"
ALL_ITEMS, WHOLE_GANG = "for all items", "for all nodes at once"
PLACED = Meaning(EACH, "for every node of the job", AGAIN, SAME)
"""An option that says where a job may be placed."""

ENVIRONMENT = ("made once on a node for all items", "made on each node", "found there, or made on the new node")

MEANINGS: dict[str, Meaning] = {
    "--gpus": Meaning(EACH, "in all, divided evenly over the nodes", "asked for again, perhaps others", SAME, "gpus"),
    "--gpu-mode": Meaning(
        "each item falls back by itself", "all nodes fall back together", "decided anew", SAME, "gpu_mode"
    ),
    "--content-type": Meaning(ALL_ITEMS, WHOLE_GANG, "decided once, at submit", SAME),
    "--cpu-command": Meaning(
        "in each item without GPUs", EACH_NODE, "in each attempt without GPUs", "runs in the container"
    ),
    "--gpu-share": Meaning(EACH, "of each GPU on each node", AGAIN, "counted, not enforced", "gpus=share"),
    "--min-memory": Meaning(EACH, "of each GPU on each node", AGAIN, SAME),
    "--config": Meaning(*["as `--gpus` and `--min-memory`, which it fills in"] * 4),
    "--gpu-model": PLACED,
    "--nodes": Meaning("each item runs on N nodes", "the number of nodes", "all nodes begin again", EACH_NODE, "nodes"),
    "--gpus-per-node": Meaning(EACH, EACH_NODE, AGAIN, SAME),
    "--no-span": Meaning(EACH, "refused with `--nodes` above 1", "holds again", SAME),
    "--node-gpu-ids": Meaning("every item waits for the same GPUs", "the GPUs of each node", "the same GPUs", SAME),
    "--allow-busy": PLACED,
    "--no-gpu-selection": PLACED,
    "--cpus": Meaning(EACH, EACH_NODE, AGAIN, "the limit of the container"),
    "--memory": Meaning(EACH, EACH_NODE, AGAIN, "the limit of the container"),
    "--nodelist": PLACED,
    "--exclude": PLACED,
    "--node-label": PLACED,
    "--name": Meaning("the name of the array and its items", SAME, SAME, SAME),
    "--env": Meaning(EACH, EACH_NODE, "as submitted", "added to those of the image", "variable"),
    "--env-all": Meaning(EACH, EACH_NODE, "as submitted", "added to those of the image"),
    "--secret": Meaning(EACH, EACH_NODE, "read at each launch: a new value counts", SAME, "secret"),
    "--cwd": Meaning(ALL_ITEMS, "each node must have it", SAME, "a folder of the image or of `--mount`"),
    "--file": Meaning(
        "a copy for each item", "a copy on each node", "a new copy, as submitted", "the working directory", "file"
    ),
    "--upload": Meaning(
        "a copy for each item", "a copy on each node", "a new copy, as submitted", "the working directory", "upload"
    ),
    "--download": Meaning(
        "each item leaves its own: `cp 41.3:`",
        "each rank leaves its own: `cp --rank 1`",
        "the newest attempt that left anything counts",
        "of the working directory",
        "download",
    ),
    "--keep": Meaning(
        "each item keeps its own",
        "each rank keeps its own",
        "laid out over the new copy of the files",
        "of the working directory",
    ),
    "--input": Meaning("a copy for each item", "a copy on each node", "a new copy", "in the working directory"),
    "--requirements": Meaning(*ENVIRONMENT, "", "environment=requirements"),
    "--uv": Meaning(*ENVIRONMENT, "refused"),
    "--conda": Meaning(*ENVIRONMENT, "refused"),
    "--setup": Meaning(*ENVIRONMENT, "", "environment=setup"),
    "--image": Meaning("a container for each item", "a container on each node", "a new container", SAME, "image"),
    "--mount": Meaning(EACH, EACH_NODE, "shown again, as it is then", "needs `--image`"),
    "--image-secret": Meaning(EACH, EACH_NODE, "read at each launch: a new value counts", "needs `--image`"),
    "--output-file": Meaning(
        "`%a` gives each item its own file", "`%t` gives each rank its own file", "appended to", "", "output_file"
    ),
    "--nice": Meaning(EACH, EACH_NODE, SAME, "", "process=nice"),
    "--rlimit": Meaning(EACH, EACH_NODE, SAME, "", "process=rlimit"),
    "--label": Meaning("of the array and its items", SAME, SAME, SAME, "waits_by=label"),
    "--band": Meaning(ALL_ITEMS, WHOLE_GANG, "kept, as `gpuctl band` left it", SAME, "band"),
    "--group": Meaning("a cap counts each item", "a cap counts all GPUs of the job", "kept", SAME, "group"),
    "--hold": Meaning(
        "all items are held; one is released by `release 41.3`",
        WHOLE_GANG,
        "holds the first attempt only",
        SAME,
        "hold",
    ),
    "--time-limit": Meaning(EACH, "ends all nodes", "counts anew in each attempt", SAME, "limit"),
    "--grace": Meaning(EACH, EACH_NODE, SAME, SAME),
    "--signal": Meaning(EACH, "to every process on each node", "once in each attempt", SAME),
    "--requeue-on-timeout": Meaning(EACH, "all nodes begin again", "up to 1,000 attempts", SAME, "on_timeout"),
    "--requeue": Meaning(
        EACH, "a lost node ends the others; all begin again", "after each loss, up to `--blame-limit`", SAME
    ),
    "--requeue-fence": Meaning(EACH, "of each node", "after each loss", SAME),
    "--after": Meaning(
        "all items wait; `--after 41` waits for all items of 41",
        WHOLE_GANG,
        "holds the first attempt only",
        SAME,
        "after",
    ),
    "--array": Meaning("the indices of the items", "each item runs on N nodes", "each item has its own", SAME, "array"),
    "--max-fails": Meaning("cancels items that wait", "an item fails once", "an item counts once, at its end", SAME),
    "--begin": Meaning(ALL_ITEMS, WHOLE_GANG, "holds the first attempt only", SAME),
    "--queue-timeout": Meaning(EACH, WHOLE_GANG, "counts anew each time it is queued", SAME),
    "--retries": Meaning(
        "N for each item", "a rank that fails ends the others; all begin again", "N more", SAME, "retries"
    ),
    "--sample-every": Meaning(EACH, EACH_NODE, SAME, SAME),
    "--preemptible": Meaning(EACH, "all nodes make room", "is preemptible again", SAME, "preemptible"),
    "--blame-limit": Meaning(EACH, "a loss of any node counts", "counts over all attempts", SAME),
    "--notify": Meaning(
        "notices of each item",
        "from the node of rank 0",
        "notices of each attempt",
        "a command runs on the node",
        "notify",
    ),
    "--no-warnings": Meaning(ALL_ITEMS, WHOLE_GANG, SAME, SAME),
    "--interactive": Meaning("refused", "shows the output of all ranks", "stays with the next attempt", SAME),
    "--dry-run": Meaning(*["checked; nothing is submitted"] * 4),
    "--request-id": Meaning("one array", SAME, "no attempt: the same answer", SAME),
    "--rerun-failed": Meaning("an array of the items that failed", SAME, "a new job, with attempts of its own", SAME),
    "--shared-root": Meaning(EACH, EACH_NODE, "read again; a changed file is `FILES_CHANGED`", SAME),
}
"""By the option as it is typed, in the order of `gpuctl submit --help`."""
