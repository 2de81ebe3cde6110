"""What runs on the node for `fleet.map` and `Executor`: it makes the calls of its item, and leaves what each gave.

It is sent as a file, stands on the standard library alone, and says so where the interpreter is another than the one
that pickled the calls. Beside it lie `calls.json` (which calls there are), `calls.bin` (them, pickled) and cloudpickle,
which is taken where none is installed. Each call leaves `left/NUMBER`: a line of JSON (how it went), then what it gave,
pickled. Exit code 1 where a call raised.
"""

import json
import os
import pickle
import sys
import traceback
from typing import IO, Any, Dict

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    with open(os.path.join(HERE, "calls.json")) as file:
        plan = json.load(file)
    index = int(os.environ.get("GPUFLEET_ARRAY_INDEX") or 0)
    numbers = range(index * plan["chunk_size"], min((index + 1) * plan["chunk_size"], len(plan["calls"])))
    os.makedirs(os.path.join(HERE, "left"), exist_ok=True)
    if list(sys.version_info[:2]) != plan["python"]:
        here = "{}.{}".format(*sys.version_info)
        for number in numbers:
            leave(number, {"kind": "python", "here": here, "interpreter": sys.executable}, b"")
        wanted = "{}.{}".format(*plan["python"])
        print(f"gpufleet: this is Python {here} ({sys.executable}), and the calls need {wanted}", file=sys.stderr)
        return 1
    # Modules beside the job are found, as by a script; cloudpickle of here comes last, behind one that is installed.
    sys.path[0] = os.getcwd()
    sys.path.append(HERE)
    code = 0
    with open(os.path.join(HERE, "calls.bin"), "rb") as file:
        for number in numbers:
            code = max(code, make(number, plan, file))
    return code


functions: Dict[int, Any] = {}


def make(number: int, plan: Dict[str, Any], file: IO[bytes]) -> int:
    function_at, function_size, at, size = plan["calls"][number]
    try:
        if function_at not in functions:
            functions[function_at] = loaded(file, function_at, function_size)
        arguments, named = loaded(file, at, size)
        given = pickled(functions[function_at](*arguments, **named))
    except BaseException as problem:
        said = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
        print(said, end="", file=sys.stderr, flush=True)
        try:
            raised = pickled(problem.with_traceback(None))
        except Exception:
            raised = b""
        leave(number, {"kind": "raised", "traceback": said, "what": f"{type(problem).__name__}: {problem}"}, raised)
        if not isinstance(problem, Exception):
            raise
        return 1
    leave(number, {"kind": "value"}, given)
    return 0


def loaded(file: IO[bytes], at: int, size: int) -> Any:
    file.seek(at)
    return pickle.loads(file.read(size))


def pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        data: bytes = cloudpickle.dumps(value)
        return data


def leave(number: int, head: Dict[str, Any], body: bytes) -> None:
    place = os.path.join(HERE, "left", str(number))
    with open(f"{place}.part", "wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        file.write(body)
    os.replace(f"{place}.part", place)


if __name__ == "__main__":
    sys.exit(main())
