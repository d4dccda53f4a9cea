"""Every guarantee over every operator: written once, and run on each specification."""
