"""The loop that finds a design and proves how good it is. Floor 5. In: an instance. Out: a solution."""
