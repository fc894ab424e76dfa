"""What a run would take: memory and time, on one device or several."""
