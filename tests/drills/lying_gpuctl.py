"""A gpuctl without a fleet, for the outsider's tests: it runs what is submitted at once, and may be told to lie.

    lying_gpuctl.py FOLDER LIE COMMAND…

Lies: `mixes` answers with the output of another job, `shows` shows variables to everybody, `repeats` runs a job again.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

REFUSED = 4


def main() -> int:
    folder, lie, command, *words = sys.argv[1:]
    who = os.environ["GPUCTL_TOKEN_FILE"]
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = Path(folder) / "jobs.json"
        jobs = json.loads(file.read_text()) if file.exists() else []
        if command == "submit":
            jobs.append(submitted(who, lie, words, len(jobs) + 1))
            file.write_text(json.dumps(jobs))
            print(json.dumps({"first_job_id": str(len(jobs)), "count": 1}))
            return 0
    may_see = (who, "ivy")
    if command == "queue":
        print(json.dumps({"jobs": [seen(job, who, lie) for job in jobs]}))
        return 0
    job = jobs[int(words[0]) - 1]
    if command == "job":
        print(json.dumps(seen(job, who, lie)))
    elif command == "wait":
        return int(job["exit"]["code"])
    elif job["user"] not in may_see[:1] and who != "ivy":
        return REFUSED
    elif command == "logs":
        told = jobs[int(words[0]) - 2] if lie == "mixes" else job
        sys.stdout.write(told["out"])
    return 0


def submitted(who: str, lie: str, words: list[str], number: int) -> dict[str, object]:
    options, argv = words[: words.index("--")], words[words.index("--") + 1 :]
    name, variable = options[options.index("--name") + 1], options[options.index("--env") + 1]
    environment = {**os.environ, "GPUFLEET_JOB_ID": str(number), "GPUFLEET_ATTEMPT": "1"}
    done = subprocess.run(argv, env=environment, check=False, capture_output=True, text=True)
    if lie == "repeats":
        subprocess.run(argv, env=environment, check=False, capture_output=True)
    return {
        "id": str(number),
        "user": who,
        "state": "JOB_STATE_FAILED" if done.returncode else "JOB_STATE_SUCCEEDED",
        "exit": {"code": done.returncode},
        "spec": {"name": name, "env": dict([variable.split("=", 1)])},
        "out": done.stdout,
    }


def seen(job: dict[str, object], who: str, lie: str) -> dict[str, object]:
    spec = job["spec"]
    assert isinstance(spec, dict)
    if who not in (job["user"], "ivy") and lie != "shows":
        spec = spec | {"env": dict.fromkeys(spec["env"], "<hidden>")}
    return {key: value for key, value in job.items() if key != "out"} | {"spec": spec}


if __name__ == "__main__":
    sys.exit(main())
