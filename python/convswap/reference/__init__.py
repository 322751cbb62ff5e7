"""The float64 evaluation of a model, and how close two answers are."""
