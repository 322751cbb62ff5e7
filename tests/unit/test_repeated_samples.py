"""User inputs with fewer samples than are needed are repeated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from convswap.inputs.feeds import declared_inputs
from convswap.inputs.user_inputs import user_input_source
from swap_models import model_with_inputs, tensor_info


def source(batch):
    model = model_with_inputs(tensor_info("x", "n", 1, 2, 2))
    values = np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1) * np.ones((1, 1, 2, 2), np.float32)
    return user_input_source({"x": values}, declared_inputs(model), batch)


def numbers(feeds):
    return feeds["x"][:, 0, 0, 0].tolist()


def test_a_batch_of_more_samples_than_there_are_repeats_them():
    assert numbers(source(8).first(8)) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_more_samples_than_there_are_repeat_them_in_the_order_of_the_batches():
    batches = [(numbers(feeds), count) for feeds, count in replace(source(4), images=5).batches()]
    assert batches[0] == ([0, 1, 2, 0], 4)
    assert batches[1][0][:1] == [1] and batches[1][1] == 1


def test_of_fewer_samples_than_there_are_the_others_are_not_used():
    assert numbers(replace(source(4), images=2).first(4)) == [0, 1, 0, 1]
