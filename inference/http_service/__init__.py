"""A replica of a served program: the program as a child on a port of loopback, and an endpoint for gateways before it.

Read `inference/core/replicas.py` first: what a replica is, and when it is told to end. All else carries out:

    options.py         its flags
    shim.py            the replica as its scheduler knows it: reports, drain, stop, and what holds the parts together
    child.py tied.py   the program: its group, its environment, its port; it ends when the shim does
    contained.py       a program in a container, which an agent has made
    readiness.py       whether it is well
    splicing.py        the endpoint: the key, then bytes both ways

What never happens here: an import of NumPy or of anything that models need; a look into what passes; a connection with
the program for somebody without the key; a program that is left behind.
"""
