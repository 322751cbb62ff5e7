"""The float64 reference: evaluation of models in float64, and error metrics."""
