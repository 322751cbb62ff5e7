"""What a model is fed: shapes, samples, files of the user's, and what it predicts of them."""
