"""What the examples share: the two frameworks behind one interface, a stopwatch, and what is shown at the end."""
