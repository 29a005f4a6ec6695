"""What a person sees: summaries and explanations. Floor 6. In: solutions and evaluations. Out: strings and data."""
