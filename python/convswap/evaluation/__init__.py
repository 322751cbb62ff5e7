"""Accuracy and agreement of a model's sides on a whole data set."""
