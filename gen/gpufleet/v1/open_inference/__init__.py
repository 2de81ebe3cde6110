"""Generated from protos/gpufleet/v1/open_inference by `make proto`; never edited."""
