"""Terms -> solver-neutral rows -> CP-SAT and HiGHS. Floor 4; may not import `codesign.exact`.

The rows are a *relaxation*: every design, with its exact values, satisfies them; so their minimum bounds every design.
"""
