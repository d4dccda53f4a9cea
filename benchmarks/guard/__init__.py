"""`make bench-check`: whether fusedops has become slower on a CPU."""
