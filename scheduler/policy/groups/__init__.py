"""What groups of users mean for choices: whose turn it is, what a cap keeps back, and what a member may ask for.

Read `turns.py` first, which the order stands on. What is known of groups is in `state/groups/`; what people want of
them is decided in `core/groups.py`. Where there is no group, nothing here is asked.
"""
