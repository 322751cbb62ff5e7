"""Inputs of a model: shapes, samples and the user's files; and predictions on labelled images."""
