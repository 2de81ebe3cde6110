"""Which job is next: bands from urgent to low; in a band users take turns by what they have used; then age.

The next job of a band is the oldest of the user with the least usage, where each job that a user has ahead in the band
counts as TURN on top. So users with equal usage take turns, and who has used a GPU for an hour waits for sixty turns of
the others. Where there are groups, they take turns by what they have used over their shares, and users inside their
group: `groups/turns.py`. Turns alone could make a job wait for ever: one that is older than the age limit goes to the
front of its band, the oldest first, whoever's it is. A requeued job keeps its age; one that its own time
limit ended has had its turn, and its age counts anew.

Read `queue.py` (the order itself), then `band.py` (how the lines of a band become one), `place.py` (a job's place,
counted) and `page.py` (the order from a place on).
"""
