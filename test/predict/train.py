"""Trains models with LightGBM and writes them, rows, and its own predictions.

    train.py FOLDER

FOLDER/rows.f64 is 10,000 rows of 15 features with NaNs, zeros and infinities;
FOLDER/NAME.txt a model and FOLDER/NAME.f64 what LightGBM predicts for each row.
Numbers are float64, little endian.
"""
import pathlib
import sys

import lightgbm
import numpy

FEATURES = 15
NAMES = [f"feature_{i}" for i in range(FEATURES)]
COMMON = dict(objective="quantile", num_leaves=31, min_data_in_leaf=20, learning_rate=0.1,
              seed=7, num_threads=2, verbosity=-1)


def sample(seed, n, missing):
    r = numpy.random.default_rng(seed)
    x = r.normal(size=(n, FEATURES))
    x[:, 5:10] = r.lognormal(3, 2, (n, 5)).round()
    x[:, 10] = r.integers(0, 3, n)
    x[r.random(x.shape) < 0.05] = 0
    known = x.copy()
    x[r.random(x.shape) < missing] = numpy.nan
    y = known[:, 0] + numpy.log1p(known[:, 5]) * known[:, 10] + abs(known[:, 1]) * r.exponential(1, n)
    return x, y


def rows():
    x, _ = sample(2, 10_000, 0.1)
    r = numpy.random.default_rng(3)
    for value in [numpy.inf, -numpy.inf, 1e300, -1e300, 1e-36, -1e-36, -0.0]:
        x[r.random(x.shape) < 0.002] = value
    x[0] = numpy.nan
    x[1] = 0
    return x


folder = pathlib.Path(sys.argv[1])
held = rows()
held.astype("<f8").tofile(folder / "rows.f64")
for name, missing, params in [
    ("p50", 0.1, dict(alpha=0.5)),
    ("p95", 0.1, dict(alpha=0.95)),
    ("no_nan_in_training", 0, dict(alpha=0.95)),
    ("zero_as_missing", 0.1, dict(alpha=0.5, zero_as_missing=True)),
    ("mean", 0.1, dict(objective="regression")),
]:
    x, y = sample(1, 20_000, missing)
    booster = lightgbm.train({**COMMON, **params}, lightgbm.Dataset(x, y, feature_name=NAMES), 200)
    booster.save_model(folder / f"{name}.txt")
    booster.predict(held).astype("<f8").tofile(folder / f"{name}.f64")
