"""The command of every job of the outsider: it prints a word that no other job has, and notes that it ran.

    job.py NOTES WORD SECONDS LINES CODE

In the folder NOTES each process has a file, WORD.JOB.ATTEMPT.PID, with the times (CLOCK_BOOTTIME) at which it certainly
lived. It prints LINES lines over SECONDS, each with its word, and ends with CODE.
"""

import os
import sys
import threading
import time

BEAT_SECONDS = 0.1
LINES_AT_ONCE = 500


def lines(word: str, attempt: int, first: int, end: int) -> bytes:
    """Lines `first` to before `end` of what an attempt prints."""
    return "".join(f"{word} {attempt} {number}\n" for number in range(first, end)).encode()


def main() -> None:
    """Run to the end."""
    folder, word, seconds, count, code = sys.argv[1:]
    attempt = int(os.environ["GPUFLEET_ATTEMPT"])
    name = f"{word}.{os.environ['GPUFLEET_JOB_ID']}.{attempt}.{os.getpid()}"
    note = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118

    def write(what: str, *more: object) -> None:
        words = (what, time.clock_gettime_ns(time.CLOCK_BOOTTIME), *more)
        os.write(note, (" ".join(map(str, words)) + "\n").encode())

    def beat() -> None:
        while True:
            write("lives")
            time.sleep(BEAT_SECONDS)

    write("began")
    threading.Thread(target=beat, daemon=True).start()
    began, printed = time.monotonic(), 0
    while True:
        passed = time.monotonic() - began
        share = min(1.0, passed / float(seconds)) if float(seconds) else 1.0
        due = int(int(count) * share)
        while printed < due:
            until = min(due, printed + LINES_AT_ONCE)
            data = lines(word, attempt, printed, until)
            while data:
                data = data[os.write(1, data) :]
            printed = until
        if share >= 1.0:
            break
        time.sleep(BEAT_SECONDS / 2)
    write("ended", code)
    os._exit(int(code))


if __name__ == "__main__":
    main()
