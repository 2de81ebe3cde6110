"""Every pair of a job's features, run by real processes and judged by the specification alone.

A row is one job: a level of each feature of `features.py`. `covering.py` chooses rows in which every pair of levels
comes together at least once; another seed chooses other rows. `combinations.py` says which levels cannot meet: the
scheduler refuses them, they make no sense, or they are known to be broken. `typed.py` is what a person types for a row,
`job.sh` what the job runs: it says what it was given. `oracle.py` computes from the row what everybody must see, and
imports nothing of the programs; `seen.py` looks. `course.py` takes one row through its life, `run.py` many at once.

    make pairs                                     all pairs, of a seed by chance
    make pairs SEED=7 ARGS="--only upload,retries" a part of them
    make pairs SEED=7 ARGS="--strength 3"          all triples

Read `features.py` first.
"""
