"""`gpuctl scheduler backup` and `restore`: the store, the keys and a list of the output in one file, and back.

Read `making.py` first: what is copied, of one moment, beside a scheduler that goes on. `archive.py` is the file: a tar
of small members whose last one, the manifest (`manifest.py`), has the sum of every other, so that a file that was cut
off or changed is noticed. `parts.py` is how rows become members, `output_list.py` what is said of output, and
`output_bytes.py` output itself. `checking.py`
reads a file as sceptically as `--verify` reads a store; `restoring.py` then puts it into an empty SQLite file or
PostgreSQL database (`targets.py`), whichever it came from, with `keys.py` for the files beside it, and `losses.py` says
what is lost. `commands.py` is what people type.

Nothing here runs beside the engine. A restore that did not come to its end must never be served: it leaves a mark
(`scheduler/restore_mark.py`) at which a start is refused.
"""
