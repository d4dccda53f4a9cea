"""What is measured: a case is one row of the tables, before anything is measured."""
