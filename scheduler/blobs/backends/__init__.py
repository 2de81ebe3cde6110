"""Where whole files are: a folder (that of the scheduler's data, or another one), or an object store.

Read `backend.py` first: what a place must be able to do. `folder.py` and `object_store.py` are the two kinds of places,
`admission.py` looks, before anything is stored there, that a place is this fleet's, and not another one that has taken
its name. What is not whole is never here: it is a part in the data folder, as `scheduler/blobs/store.py` says.
"""
