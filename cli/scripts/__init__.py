"""Scripts that are submitted: which file of a command line is one, and what its comment lines ask for.

`finding.py` finds the script in the words of a command, and reads its `#gpuctl` lines; `slurm.py` says what an
option of Slurm's is here, for `#SBATCH` lines and for options that are typed as they were there. `standard_input.py`
makes a command of a script that comes through a pipe. Nothing here asks a scheduler. Read `finding.py` first.
"""
