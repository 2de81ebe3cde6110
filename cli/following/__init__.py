"""Where output goes that is followed; what follows it is gpufleet/fleet/following."""
