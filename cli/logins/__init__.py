"""`login`, `logout` and `config user`: how a person comes to a token of their own, and who may by a password.

`login.py` declares the commands, `login_calls.py` logs in and keeps the token with its context, `loopback.py` hears
what a browser brings back, `user_calls.py` writes the file of users. Nothing of a password or a token is printed.
"""
