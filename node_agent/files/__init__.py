"""Files of jobs on their node: what goes along with a job, and what it leaves behind.

    job_files.py                what goes along, copied for each rank
    file_cache.py               what was fetched of it: once for all ranks, checked, the least recently used goes first
    job_folders.py              folders of it: manifests checked, contents written chunk by chunk
    spare_folders.py            copies of folders that come again, made beforehand
    placing.py                  has ext4 place the folders of jobs apart, where files are made fast
    shared_root.py beneath.py   the folder that nodes share: read by whose rights, and nothing outside of it
    reaching.py reached_folder.py written_file.py  the folders of running jobs, for who reaches into them
    job_inputs.py               what other jobs left, beside what goes along
    leavings.py results.py      what ranks leave: read as from strangers, brought to the scheduler
    checks.py                   answers which way files come here, and how fast

What others name and wrote is never believed: names are checked, links are not followed, digests are compared.
"""
