"""Groups of users on the wire: requests become values, checked, and groups protos. Read `checking.py` first."""
