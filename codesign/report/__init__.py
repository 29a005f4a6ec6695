"""What a person sees: summaries and explanations as text. Floor 6. In: solutions and evaluations. Out: strings and data."""
