"""What runs on the node for `fleet.map` and `Executor`: it makes the calls of its item, and leaves what each gave.

It is sent as a file, stands on the standard library alone, and says so where the interpreter is another than the one
that pickled the calls. It starts for each call, so it imports what it needs when it needs it. Beside it lie `calls`
(lines of numbers, which say what of the bytes behind them each call is) and cloudpickle, which is taken where none is
installed. Each call leaves `left/NUMBER`: a line of JSON (how it went), then what it gave, pickled. Exit code 1 where a
call raised.
"""

import os
import pickle
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    with open(os.path.join(HERE, "calls"), "rb") as file:
        version, chunk_size, count = file.readline().decode().split()
        chunk, index = int(chunk_size), int(os.environ.get("GPUFLEET_ARRAY_INDEX") or 0)
        numbers = range(index * chunk, min((index + 1) * chunk, int(count)))
        plan = [file.readline() for _ in range(int(count))]
        os.makedirs(os.path.join(HERE, "left"), exist_ok=True)
        here = "{}.{}".format(*sys.version_info)
        if here != version:
            for number in numbers:
                leave(number, {"kind": "python", "here": here, "interpreter": sys.executable}, b"")
            print(f"gpufleet: this is Python {here} ({sys.executable}), the calls need {version}", file=sys.stderr)
            return 1
        # Modules beside the job are found, as by a script; cloudpickle of here comes behind one that is installed.
        sys.path[0] = os.getcwd()
        sys.path.append(os.path.join(HERE, "cloudpickle.zip"))
        starts_at = file.tell()
        functions: dict = {}  # type: ignore[type-arg]
        codes = [
            make(number, [int(each) for each in plan[number].split()], file, starts_at, functions) for number in numbers
        ]
    return max(codes)


def make(number, places, file, starts_at, functions) -> int:  # type: ignore[no-untyped-def]
    """Make a call; its places are where its function begins and how long it is, and the same of what it is given."""

    def loaded(at: int, size: int):  # type: ignore[no-untyped-def]
        file.seek(starts_at + at)
        return pickle.loads(file.read(size))

    function_at, function_size, at, size = places
    try:
        if function_at not in functions:
            functions[function_at] = loaded(function_at, function_size)
        arguments, named = loaded(at, size)
        given = pickled(functions[function_at](*arguments, **named))
    except BaseException as problem:
        import traceback

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


def pickled(value) -> bytes:  # type: ignore[no-untyped-def]
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        data: bytes = cloudpickle.dumps(value)
        return data


def leave(number, head, body) -> None:  # type: ignore[no-untyped-def]
    if len(head) == 1:
        line = b'{"kind": "value"}'
    else:
        import json

        line = json.dumps(head).encode()
    place = os.path.join(HERE, "left", str(number))
    with open(f"{place}.part", "wb") as file:
        file.write(line + b"\n")
        file.write(body)
    os.replace(f"{place}.part", place)


if __name__ == "__main__":
    sys.exit(main())
