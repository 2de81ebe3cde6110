"""`gpuctl infer`: a few files, texts or values are asked about, and the answers printed.

`command.py` is what is typed, `items.py` makes items of it, and `program.py` asks by gpufleet.client and prints.
`reaching.py` tells at once, and in words, why nobody can be asked: other commands that ask models use it, too. For
many rows there is `gpuctl batch`; nothing here is kept in a file, and nothing goes on where it was.
"""
