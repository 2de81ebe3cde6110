"""What people type: one module for each command or small family of commands.

Each command is a plain function; its parameters are the options (`options.py` says how shared ones are spread) and
its docstring is the help. A module imports nothing heavy at its top: grpc and the messages are imported inside the
function, because help and completion load every module here. To add a command, write the function and add a row
to `menu.py`.
"""
