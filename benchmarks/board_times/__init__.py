"""Published times of others' boards beside the timing model's predictions: data, programs, errors, fit."""
