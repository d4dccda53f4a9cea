"""What a run writes, and what follows from it: figures, goals, tables."""
