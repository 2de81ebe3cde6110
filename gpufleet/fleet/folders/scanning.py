"""What there is in a folder: names and sizes, nothing is read."""

from __future__ import annotations

import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.folders import ENTRIES_MAX, folders_above, trouble_with_link
from gpufleet.text.cleaning import is_utf8
from gpufleet.text.units import format_size

from .ignored import IgnoredFiles
from .ignoring import BY_DEFAULT, MARKS_OF_ENVIRONMENTS, NEVER, OWN_FILE, IgnoreRules, rules_above

OPTION = "--upload"
LARGEST_SHOWN = 5
LEFT_OUT_SHOWN = 3
COUNTED_MAX = 1_000_000
"""Files beyond the limit that are counted, to say where most of them are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much goes along: settings `upload_bytes_max` and `upload_files_max`."""

    bytes_max: int
    files_max: int


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was found; what tells whether it is still the same."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int
    is_executable: bool


@dataclass(slots=True)
class ScannedFolder:
    """All that goes along, by path in order, and what is worth a word."""

    root: Path
    files: list[FoundFile] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    empty_folders: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What nobody named: environments and the like, and what is neither a file nor a folder."""
    ignored: IgnoredFiles = field(default_factory=IgnoredFiles)
    """What patterns leave out, such as those of .gitignore."""

    @property
    def content_bytes(self) -> int:
        return sum(each.size for each in self.files)

    @property
    def count(self) -> int:
        return len(self.files) + len(self.links) + len(self.empty_folders)


def scan(root: Path, limits: Limits) -> ScannedFolder:
    """Look through a folder. Errors: FILE_NOT_FOUND, INVALID_ARGUMENT, FILE_TOO_LARGE, each with what to type next."""
    if not root.exists():
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"there is no folder {root}", next_step="Check its name.")
    if not root.is_dir():
        raise invalid(OPTION, f"{root} is no folder", next_step=f"A single file goes along with: --file {root}")
    found = ScannedFolder(root)
    most = min(limits.files_max, ENTRIES_MAX)
    walked = _walk(root, "", rules_above(root), found)
    found.files += [each for each in islice(walked, most) if isinstance(each, FoundFile)]
    if (another := next(walked, None)) is not None:
        raise _too_many(found, chain([another], islice(walked, COUNTED_MAX)), most)
    found.files.sort(key=lambda each: each.path)
    _check_links(found)
    if found.content_bytes > limits.bytes_max:
        raise _too_large(found, limits.bytes_max)
    return found


def _walk(folder: Path, path: str, rules: IgnoreRules, found: ScannedFolder) -> Iterator[FoundFile | str]:
    """Each thing below a folder that goes along; links and empty folders are noted in `found`."""
    try:
        with os.scandir(folder) as opened:
            entries = list(opened)
    except OSError as problem:
        raise _unreadable(found.root, path or str(folder), problem) from None
    names = frozenset(entry.name for entry in entries)
    if path and names & MARKS_OF_ENVIRONMENTS and not rules.takes_along(path):
        found.left_out.append(f"{path}/")
        return
    if path and not entries:
        found.empty_folders.append(path)
        yield path
        return
    rules = rules.inside(folder, path, names)
    for entry in entries:
        inner = f"{path}/{entry.name}" if path else entry.name
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            if rules.leaves_out(inner, entry.name, is_folder=is_folder):
                if entry.name in BY_DEFAULT - NEVER:
                    found.left_out.append(f"{inner}/" if is_folder else inner)
                elif entry.name not in NEVER:
                    found.ignored.add(entry, inner)
                continue
            if why := trouble_with_path(inner):
                raise _odd_name(found.root, inner, entry.name, why)
            if is_folder:
                yield from _walk(Path(entry.path), inner, rules, found)
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                found.links[inner] = str(Path(entry.path).readlink())
                yield inner
            elif stat.S_ISREG(status.st_mode):
                yield FoundFile(
                    inner,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                    status.st_dev,
                    bool(status.st_mode & 0o100),
                )
            else:
                found.left_out.append(f"{inner} (no plain file)")
        except FileNotFoundError:
            continue  # it was removed while we looked: it does not go along
        except OSError as problem:
            raise _unreadable(found.root, inner, problem) from None


def _check_links(found: ScannedFolder) -> None:
    if not found.links:
        return
    paths = {each.path for each in found.files} | found.links.keys() | set(found.empty_folders)
    folders, links = folders_above(paths), set(found.links)
    for path, target in sorted(found.links.items()):
        why = trouble_with_link(path, target, paths, folders, links)
        if not why and not is_utf8(target):
            why = "leads to what is not UTF-8 text"
        if why:
            raise invalid(
                OPTION,
                f"{path} is a link to {target!a}, and {why}",
                next_step=f"Leave it out: {ignore_line(found.root, path)} · or put what it leads to in its place.",
            )


def ignore_line(root: Path, path: str, *, is_folder: bool = False) -> str:
    """The shell line that leaves something of a folder out from now on, and nothing else; safe to type whatever the
    name is."""
    pattern = "".join(_MEANS.get(each, each) for each in path)
    if pattern.endswith(" ") and not is_folder:
        pattern = f"{pattern[:-1]}\\ "
    return f"echo {shlex.quote(f'/{pattern}/' if is_folder else f'/{pattern}')} >> {_own_file(root)}"


_MEANS = {"*": "\\*", "?": "\\?", "[": "\\[", "]": "\\]", "\\": "?"}
"""What means more than itself in a pattern; a backslash does to some shells' echo, too."""


def _own_file(root: Path) -> str:
    """The folder's file of what stays here, as to be typed."""
    return shlex.quote(str(root / OWN_FILE))


def _odd_name(root: Path, path: str, name: str, why: str) -> GpufleetError:
    pattern = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "?" for each in name)
    return invalid(
        OPTION,
        f"the name of {path!a} {why}",
        next_step=f"Rename it, or leave it out: echo '{pattern}' >> {_own_file(root)}",
    )


def _unreadable(root: Path, path: str, problem: OSError) -> GpufleetError:
    return GpufleetError(
        Reason.FILE_NOT_FOUND,
        f"{path!a} cannot be read: {problem.strerror}",
        next_step=f"Leave it out: {ignore_line(root, path)}",
    )


def _too_many(found: ScannedFolder, more: Iterable[FoundFile | str], most: int) -> GpufleetError:
    rest = (each if isinstance(each, str) else each.path for each in more)
    paths = [*(each.path for each in found.files), *rest]
    counts = Counter(path.partition("/")[0] for path in paths if "/" in path)
    told, number = counts.most_common(1)[0] if counts else ("FOLDER", 0)
    what = f"; of {len(paths):,} that were counted {number:,} lie in {told}/" if number else ""
    leave = f"Leave out what the job does not need: {ignore_line(found.root, told, is_folder=True)}"
    take = f" · or take more: GPUCTL_UPLOAD_FILES_MAX={ENTRIES_MAX}" if most < ENTRIES_MAX else ""
    said = f"{found.root} holds more than {most:,} files{what}"
    return invalid(OPTION, said, reason=Reason.FILE_TOO_LARGE, next_step=f"{leave}{take}")


def _too_large(found: ScannedFolder, most: int) -> GpufleetError:
    sizes: Counter[str] = Counter()
    for each in found.files:
        sizes[each.path.partition("/")[0]] += each.size
    told, size = sizes.most_common(1)[0]
    is_folder = all(each.path != told for each in found.files)
    leave = f"Leave out what the job does not need: {ignore_line(found.root, told, is_folder=is_folder)}"
    what = f"{format_size(found.content_bytes)}, of which {format_size(size)} in {told}{'/' if is_folder else ''}"
    return invalid(
        OPTION,
        f"{found.root} holds {what}; at most {format_size(most)} go along. Largest: {largest(found)}",
        reason=Reason.FILE_TOO_LARGE,
        next_step=f"{leave} · or take more: GPUCTL_UPLOAD_BYTES_MAX={found.content_bytes}",
    )


def largest(found: ScannedFolder) -> str:
    """The five largest files, with their sizes."""
    files = sorted(found.files, key=lambda each: (-each.size, each.path))[:LARGEST_SHOWN]
    return ", ".join(f"{each.path} {format_size(each.size)}" for each in files)
