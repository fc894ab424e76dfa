"""Trained models: loaded, evaluated, and their predictions."""
