"""What runs and administers a fleet: programs, tokens, audit, settings, usage, `up`, `down`, `doctor`, `version`."""
