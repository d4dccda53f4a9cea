"""`make bench-check`: fails if fusedops has become slower on a CPU."""
