"""Predictions against measured runs: reading, filling, predicting, scoring, fitting. Floor 5."""
