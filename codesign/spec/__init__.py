"""What the user states: instance files read strictly, with the place of every value. Floor 1; no formulas."""
