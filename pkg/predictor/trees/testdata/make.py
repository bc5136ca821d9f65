#!/usr/bin/env python3
"""Makes the models of this folder anew, from synthetic rows.

    python3 -m venv venv && venv/bin/pip install lightgbm==4.7.0
    venv/bin/python make.py
"""
import csv
import hashlib
import json
import pathlib

import lightgbm
import numpy

NAMES = ["prompt", "waiting", "kv", "age", "rate"]
COMMON = dict(objective="quantile", learning_rate=0.2, min_data_in_leaf=20, seed=1,
              num_threads=1, deterministic=True, force_row_wise=True, verbosity=-1)
here = pathlib.Path(__file__).parent


def rows(seed, n):
    r = numpy.random.default_rng(seed)
    x = numpy.column_stack([
        r.lognormal(6, 1, n),
        r.poisson(3, n),
        r.random(n),
        r.exponential(0.3, n),
        r.normal(0, 1, n),
    ])
    x[r.random(x.shape) < 0.1] = numpy.nan
    known = numpy.nan_to_num(x)
    y = 0.3 * numpy.log1p(known[:, 0]) + 0.2 * known[:, 1] + known[:, 2] ** 2 + r.exponential(0.2, n)
    return x, y


def train(x, y, trees, categorical="auto", **params):
    data = lightgbm.Dataset(x, y, feature_name=NAMES, categorical_feature=categorical)
    return lightgbm.train({**COMMON, **params}, data, trees)


def save(booster, name):
    booster.save_model(here / name)
    return hashlib.sha256((here / name).read_bytes()).hexdigest()


def number(v):
    return None if numpy.isnan(v) else float(v)


x, y = rows(1, 2000)
heads = {"p50": train(x, y, 20, alpha=0.5, num_leaves=15), "p95": train(x, y, 6, alpha=0.95, num_leaves=6)}
save(train(x, y, 1, alpha=0.5, num_leaves=3, linear_tree=True), "linear.txt")
save(train(x, y * 0 + 1, 3, alpha=0.5), "constant.txt")
save(train(x, y, 1, alpha=0.5, num_leaves=4, categorical=["waiting"]), "categorical.txt")
save(train(x, y, 2, objective="poisson", num_leaves=4), "poisson.txt")

(here / "model").mkdir(exist_ok=True)
held, _ = rows(2, 200)
held[0] = numpy.nan
held[1] = 0
held[2] = numpy.inf
held[3] = -numpy.inf
expected = {name: head.predict(held) for name, head in heads.items()}
with open(here / "expected.csv", "w", newline="") as f:
    out = csv.writer(f, lineterminator="\n")
    out.writerow(NAMES + ["p50", "p95"])
    for i, row in enumerate(held):
        out.writerow([repr(float(v)) for v in [*row, expected["p50"][i], expected["p95"][i]]])

unknown = dict(rows=0, mape=None, median_error=None, coverage=None, pinball=None)
manifest = {
    "format": "firsttoken-model/1",
    "id": "20261130T120000-ab12cd",
    "created": "2026-11-30T12:00:00Z",
    "schema": "0123456789abcdef",
    "base": "analytic",
    "heads": {name: {"file": name + ".txt", "sha256": save(head, f"model/{name}.txt"), "alpha": alpha}
              for (name, head), alpha in zip(heads.items(), [0.5, 0.95])},
    "golden": [{"row": [number(v) for v in held[i]], "p50": expected["p50"][i], "p95": expected["p95"][i]}
               for i in [0, 1, *range(4, 12)]],
    "training": {"rows": len(x), "from": "2026-11-29T12:00:00Z", "to": "2026-11-30T12:00:00Z",
                 "lightgbm": lightgbm.__version__, "source": "synthetic rows"},
    "metrics": {"all": {"rows": 200, "mape": 0.1, "median_error": 0.08, "coverage": 0.95, "pinball": 0.02},
                "kv_full": unknown},
}
(here / "model/manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
