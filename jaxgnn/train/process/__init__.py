"""A run as a process: checkpoints, faults and kills, several processes, the machine."""
