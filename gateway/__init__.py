"""The web gateway: what a browser talks to, for live sessions and the dashboard.

Nothing of it is built yet. It will hold one stream to the scheduler for all its people, decide nothing by itself, pass
a person's own token on for everything but opening sessions, and never import another program.
"""
