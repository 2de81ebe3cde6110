"""Which tests run when, and what they may cost.

Three rings, each with a command: `make test-fast` is what is pure, `make test` all that a change can break, and `make
nightly` what takes long: all seeds, drills, upgrades, Patroni, containers and several nodes in depth, bulk fuzzing. A
test belongs to the nightly ring by the mark `nightly`; CI runs a quarter of it after each landing (`.ci/run`), so that
four landings in a row run all of it. `choosing.py` selects and orders, `cost.py` measures CPU time against budgets.
"""
