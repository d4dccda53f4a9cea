"""Code shared by the examples: one interface to all frameworks, a stopwatch, and the display of results."""
