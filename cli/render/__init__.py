"""How things look: tables of 80 columns, records, JSON in the field names of the protos, times and states in words.

Functions from messages to text. They read no terminal, no clock and no environment: width, colour and the present
time come in as arguments, so that every screen is a golden text in the tests. `table.py` is the file to read first.
"""
