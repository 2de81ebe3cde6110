"""This machine: facts of it, a data folder that one process has at a time, its files, and how its agent stands."""
