"""`gpuctl batch`: every row of a file, or every file of a folder, through a served model into a file of answers.

`command.py` is what is typed, `rows.py` reads what is asked, `answers.py` keeps what was answered, `done_rows.py` knows
what is not asked again, and `program.py` runs the one into the other by gpufleet.client; `job.py` submits the same as a
job. Read `program.py` first. Nothing here holds more than a few batches in memory, and nothing here decides about
retries: that is the client's.
"""
