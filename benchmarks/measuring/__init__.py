"""How a case is measured: in a process for each framework, checked, contenders taking turns."""
