"""The results of a run, and figures, goals and tables derived from them."""
