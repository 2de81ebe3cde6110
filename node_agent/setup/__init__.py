"""Python environments that jobs begin in: made once for the same content, kept, and read by the jobs that have it.

    environments.py     which there are, who uses them, who waits, and what goes to make room; read it first
    recipes.py          from what a job asks for to a key, a script, and the files that the builder sees
    requirements.py     whether a requirements file needs more than itself
    tools.py            the interpreters and programs that this node has
    building.py         one build: its folders, its time, what it writes
    written.py          what builds wrote, by rank
    preparing.py        what is said of ranks that are prepared: how far their files, images and environments are
    builder.py          the process above a build: in a jail and a control group, where jobs are

Nobody changes what others get: a builder sees what the key is made of and nothing else, and jobs read what it has made.
Rules: 4.41 to 4.45 of docs/rules/jobs.md.
"""
