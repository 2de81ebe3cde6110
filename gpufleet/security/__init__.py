"""Secrets that people and programs hold: tokens, turn tickets, pass phrases. They are stored as hashes alone.

Read `tokens.py` first.
"""
