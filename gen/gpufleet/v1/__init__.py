"""Generated from protos/gpufleet/v1 by `make proto`; never edited."""
