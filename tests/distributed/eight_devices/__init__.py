"""Checks on eight simulated devices: `python -m tests.distributed.eight_devices`."""
