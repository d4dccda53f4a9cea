"""What the examples share: the two frameworks behind one interface, a stopwatch, and how results are shown."""
