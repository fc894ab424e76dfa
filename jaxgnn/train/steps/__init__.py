"""A training step: model, optimizer, devices, and the compiled programs."""
