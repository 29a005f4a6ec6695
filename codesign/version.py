"""The version of this package, in one place. Floor 0. The build reads it; solution files record it."""

__version__ = "0.1.0"
