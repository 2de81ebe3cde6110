"""What runs and administers a fleet: `up`, `down`, the programs, tokens, settings, usage, `doctor`, `version`."""
