"""One file per revision, in the order of their numbers; a released one is never changed."""
