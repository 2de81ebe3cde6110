"""This machine: facts of it, a data folder that one process has at a time, its files, how its agent stands, and what
a program tells the service manager that started it."""
