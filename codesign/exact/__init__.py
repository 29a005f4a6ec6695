"""Judgement of one explicit design. Floor 4; imports no solver and may not import `codesign.relax`."""

from codesign.exact.evaluate import Judge, evaluate

__all__ = ["Judge", "evaluate"]
