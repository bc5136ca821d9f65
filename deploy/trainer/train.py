#!/usr/bin/env python3
"""Trains a model of the time to first token on the gateway's sample log.

Two LightGBM heads, the median and the 0.95 quantile, predict
log(TTFT / base), base being the gateway's analytic estimate. The model is
written with its manifest into a folder of its own, which appears whole or not
at all. `firsttoken train` runs this program, checks the model and decides
whether it may serve.

Time order is kept everywhere: the model is fit on the oldest samples, stopped
early by those after them, and measured on the newest. A sample counts in a
window only if its outcome was known when the window ended.

A sample whose client left before the first token is a lower bound of its time.
A head uses it only where the bound is above what was predicted at the time (by
the same head of the estimator that served), with the bound as truth: the
prediction was exceeded, that much is known. A bound below the prediction says
nothing and is left out. If clients leave for reasons of their own, the share
of exceeded predictions that the head learns from is then at most the true one,
and closer to it than with these samples dropped.
"""

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import threading

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FORMAT = "firsttoken-model/1"
REGIMES = ("idle", "busy", "queued", "kv_full")
ALPHAS = {"p50": 0.5, "p95": 0.95}
GOLDEN = 12  # rows whose predictions are kept in the manifest
SECOND = 1_000_000_000  # in nanoseconds

# Quantile leaves are renewed with the quantile of their residuals, so a leaf
# of the upper head needs 20 rows beyond it: 20 / (1 - 0.95) = 400.
PARAMETERS = {
    "p50": {"min_data_in_leaf": 100, "num_leaves": 31, "learning_rate": 0.08},
    "p95": {"min_data_in_leaf": 400, "num_leaves": 31, "learning_rate": 0.08},
}


class Unfit(Exception):
    """What was given cannot be trained on; the text says what to change."""


@dataclasses.dataclass
class Samples:
    """Rows in the order of their times. Arrays have one element a row."""

    schema: str  # hash of the features
    names: list  # of the features
    at: np.ndarray  # sent, nanoseconds since 1970
    backend: np.ndarray
    regime: np.ndarray
    ttft: np.ndarray  # seconds; a lower bound where censored
    censored: np.ndarray
    features: np.ndarray  # rows × names, NaN where unknown
    said: dict  # estimator, also "served" → {"p50": seconds, "p95": seconds}, NaN where it said nothing

    def __len__(self):
        return len(self.at)

    @property
    def base(self):
        return self.features[:, self.names.index("base")]

    @property
    def known(self):
        """When the outcome was known, nanoseconds since 1970."""
        return self.at + (self.ttft * SECOND).astype(np.int64)

    def take(self, rows):
        said = {k: {head: v[rows] for head, v in heads.items()} for k, heads in self.said.items()}
        return dataclasses.replace(
            self, at=self.at[rows], backend=self.backend[rows], regime=self.regime[rows], ttft=self.ttft[rows],
            censored=self.censored[rows], features=self.features[rows], said=said)


# Reading


def read(folder):
    """All samples in the files of a folder."""
    files = sorted(pathlib.Path(folder).glob("*.parquet"))
    if not files:
        raise Unfit(f"{folder} has no files of samples (*.parquet); the gateway completes one every hour, and when it stops")
    tables, first = [], None
    for file in files:
        table = read_file(file)
        first = first or (file, meta(table, file))
        if meta(table, file) != first[1]:
            raise Unfit(f"{file} has features of schema {meta(table, file)[0]}, {first[0]} of {first[1][0]}; "
                        "move the files of the older version away")
        tables.append(table)
    schema, names = first[1]
    try:
        return arrange(pa.concat_tables(tables), schema, names)
    except (KeyError, pa.ArrowInvalid) as e:
        raise Unfit(f"the files in {folder} do not have the columns of a sample log: {e}") from e


def read_file(file):
    try:
        return pq.read_table(file)
    except (pa.ArrowException, OSError) as e:
        raise Unfit(f"{file} cannot be read, remove it: {e}") from e


def meta(table, file):
    """Hash and names of the features, as the file gives them."""
    said = table.schema.metadata or {}
    try:
        return said[b"firsttoken.schema"].decode(), said[b"firsttoken.features"].decode().split(",")
    except KeyError as e:
        raise Unfit(f"{file} does not say which features it holds; it is no file of samples") from e


def arrange(table, schema, names):
    at = column(table, "at", pa.int64())
    order = np.argsort(at, kind="stable")
    features = np.column_stack([column(table, n, pa.float64()) for n in names])
    features[~np.isfinite(features)] = np.nan
    said = {}
    for name in table.column_names:
        if name.endswith("_p50") and name not in names:
            k = name.removesuffix("_p50")
            said[k] = {head: column(table, f"{k}_{head}", pa.float64()) for head in ALPHAS}
    served = column(table, "served", pa.string())
    said["served"] = {head: np.full(len(at), np.nan) for head in ALPHAS}
    for k, heads in said.items():
        for head in ALPHAS:
            said["served"][head] = np.where(served == k, heads[head], said["served"][head])
    return Samples(
        schema=schema, names=names, at=at, backend=column(table, "backend", pa.string()),
        regime=column(table, "regime", pa.string()), ttft=column(table, "ttft", pa.float64()),
        censored=column(table, "censored", pa.bool_()), features=features, said=said).take(order)


def column(table, name, kind):
    return table.column(name).cast(kind).to_numpy()


# Choosing rows


def usable(samples, window, min_rows):
    """The rows of the last window (nanoseconds) that can be learned from."""
    recent = samples.take(samples.at >= samples.at[-1] - window) if len(samples) else samples
    no_base = ~(recent.base > 0)
    no_time = ~(np.isfinite(recent.ttft) & (recent.ttft > 0)) & ~no_base
    kept = recent.take(~no_base & ~no_time)
    say(f"{len(samples)} samples, {len(recent)} of them in the window; dropped: {no_base.sum()} without an analytic "
        f"estimate, {no_time.sum()} without a time; {kept.censored.sum()} are lower bounds")
    if len(kept) < min_rows:
        raise Unfit(f"{len(kept)} usable samples, {min_rows} are needed; let the gateway serve for longer, or give a wider --window")
    return kept


def split(samples, validation, test):
    """Training, validation and test rows, in the order of time. What was not
    known yet when a window ended is not in it."""
    n = len(samples)
    begins = [samples.at[int(n * (1 - validation - test))], samples.at[int(n * (1 - test))]]
    train = (samples.at < begins[0]) & (samples.known <= begins[0])
    valid = (samples.at >= begins[0]) & (samples.at < begins[1]) & (samples.known <= begins[1])
    parts = [samples.take(rows) for rows in (train, valid, samples.at >= begins[1])]
    for part, name in zip(parts, ("training", "validation", "test")):
        if not len(part):
            raise Unfit(f"the {name} window is empty: too few outcomes were known in time; let the gateway serve for longer")
    return parts


def reservoir(samples, limit, rng):
    """At most limit rows: every regime gets the same share, and every backend
    the same share of its regime's; what one does not fill goes to the others."""
    regimes = [np.flatnonzero(samples.regime == r) for r in np.unique(samples.regime)]
    kept = []
    for rows, share in zip(regimes, shares([len(r) for r in regimes], limit)):
        backends = [rows[samples.backend[rows] == b] for b in np.unique(samples.backend[rows])]
        for part, quota in zip(backends, shares([len(b) for b in backends], share)):
            kept.append(rng.choice(part, quota, replace=False))
    return samples.take(np.sort(np.concatenate(kept)))


def shares(sizes, limit):
    """Limit, dealt out evenly among parts that hold no more than sizes."""
    result, left = [0] * len(sizes), limit
    for done, i in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        result[i] = min(sizes[i], left // (len(sizes) - done))
        left -= result[i]
    return result


def labels(samples, head):
    """What the head learns from: features and log(TTFT / base)."""
    said = samples.said["served"][head]
    bar = np.where(np.isfinite(said), said, samples.base)
    rows = samples.take(~samples.censored | (samples.ttft > bar))
    return rows.features, np.log(rows.ttft / rows.base)


# Training


def fit(train, valid, head, options):
    """The trees of one head: as many as suit the validation window, grown again
    on both windows."""
    parameters = PARAMETERS[head] | {
        "objective": "quantile", "metric": "quantile", "alpha": ALPHAS[head], "feature_fraction": 0.8,
        "bagging_fraction": 0.8, "bagging_freq": 1, "num_threads": options.threads, "verbosity": -1,
        "seed": options.seed, "deterministic": True, "force_row_wise": True}
    if head == "p95":
        parameters["min_data_in_leaf"] = options.p95_leaf

    def grow(parts, rounds, **more):
        x, y = (np.concatenate(a) for a in zip(*(labels(p, head) for p in parts)))
        data = lightgbm.Dataset(x, y, feature_name=train.names, free_raw_data=False)
        return lightgbm.train(parameters, data, rounds, **more), len(y)

    x, y = labels(valid, head)
    stop = lightgbm.early_stopping(30, verbose=False)
    found, _ = grow([train], options.trees, valid_sets=[lightgbm.Dataset(x, y, feature_name=train.names)], callbacks=[stop])
    booster, rows = grow([train, valid], max(found.best_iteration, 1))
    say(f"{head}: {booster.num_trees()} trees on {rows} rows")
    return booster


# Measuring


def predict(boosters, samples):
    """P50 and P95 in seconds."""
    p50, p95 = (boosters[head].predict(samples.features) for head in ALPHAS)
    return {"p50": samples.base * np.exp(p50), "p95": samples.base * np.exp(np.maximum(p50, p95))}


def metrics(samples, said):
    """How good predictions were. Pinball is the mean loss of P95, of the
    logarithm of the time. A lower bound counts against a prediction below it;
    of others it shows nothing."""
    rows = np.isfinite(said["p50"]) & np.isfinite(said["p95"])
    truth, p50, p95, bound = samples.ttft[rows], said["p50"][rows], said["p95"][rows], samples.censored[rows]
    error = (np.abs(p50 - truth) / truth)[~bound]
    above = np.log(truth / p95)
    open_ended = bound & (above <= 0)
    loss = np.where(open_ended, 0, np.maximum(0.95 * above, -0.05 * above))
    covered = (above <= 0)[~open_ended]
    return {"rows": len(truth), "mape": mean(error), "median_error": mean(np.quantile(error, [0.5])) if len(error) else None,
            "coverage": mean(covered), "pinball": mean(loss)}


def mean(values):
    return float(np.mean(values)) if len(values) else None


def by_regime(samples, said):
    result = {"all": metrics(samples, said)}
    for regime in REGIMES:
        rows = samples.regime == regime
        result[regime] = metrics(samples.take(rows), {head: v[rows] for head, v in said.items()})
    return result


def print_metrics(results):
    say("\nOn the test window, of which nothing was trained on:\n")
    say(f"{'regime':8} {'estimator':10} {'rows':>7} {'MAPE':>7} {'median':>7} {'P95 covers':>10} {'pinball':>8}")
    for regime in ("all", *REGIMES):
        for name, result in results.items():
            m = result[regime]
            if m["rows"]:
                say(f"{regime:8} {name:10} {m['rows']:7} {percent(m['mape'])} {percent(m['median_error'])} "
                    f"{percent(m['coverage']):>10} {number(m['pinball'])}")


def percent(x):
    return "      –" if x is None else f"{100 * x:5.1f} %"


def number(x):
    return "       –" if x is None else f"{x:8.4f}"


# Publishing


def load(folder, schema):
    """The boosters of a published model."""
    try:
        manifest = json.loads((pathlib.Path(folder) / "manifest.json").read_text())
        if manifest["schema"] != schema:
            raise Unfit(f"the champion in {folder} has features of schema {manifest['schema']}, the samples of {schema}")
        return {h: lightgbm.Booster(model_file=pathlib.Path(folder) / manifest["heads"][h]["file"]) for h in ALPHAS}
    except (OSError, ValueError, KeyError, lightgbm.basic.LightGBMError) as e:
        raise Unfit(f"the champion in {folder} cannot be read: {e}") from e


def golden(boosters, samples, rng):
    """Rows and what LightGBM predicts for them: some with values unknown, one
    with all."""
    rows = samples.features[np.linspace(0, len(samples) - 1, GOLDEN).astype(int)].copy()
    rows[GOLDEN // 2:][rng.random((GOLDEN - GOLDEN // 2, rows.shape[1])) < 0.3] = np.nan
    rows[-1] = np.nan
    said = {head: boosters[head].predict(rows) for head in ALPHAS}
    return [{"row": [None if math.isnan(v) else float(v) for v in row], "p50": float(a), "p95": float(b)}
            for row, a, b in zip(rows, said["p50"], said["p95"])]


def publish(out, boosters, manifest):
    """Writes the model into a folder beside, and gives it its name when it is
    whole. Returns the folder."""
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        temp = pathlib.Path(tempfile.mkdtemp(prefix=".tmp-", dir=out))
        try:
            return name(temp, out, boosters, manifest)
        finally:
            shutil.rmtree(temp, ignore_errors=True)


def name(temp, out, boosters, manifest):
    heads, digest = {}, hashlib.sha256()
    for head, alpha in ALPHAS.items():
        text = model_text(boosters[head])
        write(temp / f"{head}.txt", text)
        digest.update(text)
        heads[head] = {"file": f"{head}.txt", "sha256": hashlib.sha256(text).hexdigest(), "alpha": alpha}
    created = datetime.datetime.fromisoformat(manifest["created"])
    model = f"{created:%Y%m%dT%H%M%S}-{digest.hexdigest()[:6]}"
    manifest = {"format": FORMAT, "id": model} | manifest | {"heads": heads}
    write(temp / "manifest.json", json.dumps(manifest, indent=1, allow_nan=False).encode() + b"\n")
    temp.chmod(0o755)
    temp.rename(out / model)
    return out / model


def model_text(booster):
    """The model as LightGBM saves it, but for the number of threads, which
    changes nothing else: the same trees have the same text."""
    return re.sub(r"^\[num_threads: \d+\]$", "[num_threads: 0]", booster.model_to_string(), flags=re.MULTILINE).encode()


def write(path, data):
    with open(path, "xb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


@contextlib.contextmanager
def exclusive(folder):
    """Holds the lock of a directory of models, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def instant(ns):
    """Nanoseconds since 1970 as in RFC 3339."""
    whole = datetime.datetime.fromtimestamp(int(ns) // SECOND, datetime.timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(ns) % SECOND:09d}Z"


# The program


def train(options):
    """Trains and publishes. Returns the model's folder."""
    samples = usable(read(options.samples), options.window, options.min_rows)
    rng = np.random.default_rng(options.seed)
    training, validation, test = split(samples, options.validation, options.test)
    training, validation = reservoir(training, options.max_rows, rng), reservoir(validation, options.max_rows // 3, rng)
    boosters = {head: fit(training, validation, head, options) for head in ALPHAS}
    check_order(boosters, test)
    results = compare(boosters, test, options.champion)
    print_metrics(results)
    folder = publish(options.out, boosters, {
        "created": options.created,
        "schema": samples.schema,
        "base": "analytic",
        "golden": golden(boosters, test, rng),
        "training": {
            "rows": len(training) + len(validation),
            "from": instant(min(training.at[0], validation.at[0])),
            "to": instant(max(training.at[-1], validation.at[-1])),
            "lightgbm": lightgbm.__version__,
            "source": options.source or f"sample log, {len(np.unique(samples.backend))} backends",
        },
        "metrics": results["model"],
    })
    say(f"\nmodel {folder.name} is trained")
    return folder


def check_order(boosters, test):
    """The upper head must be the upper one, but for a few rows."""
    below = np.mean(boosters["p95"].predict(test.features) < boosters["p50"].predict(test.features))
    say(f"P95 is below P50 in {100 * below:.2f} % of the test rows")
    if below > 0.05:
        raise Unfit(f"P95 is below P50 in {100 * below:.0f} % of the test rows, 5 % are tolerated; train on more samples")


def compare(boosters, test, champion):
    results = {"model": by_regime(test, predict(boosters, test))}
    for k in ("analytic", "served"):
        if k in test.said:
            results[k] = by_regime(test, test.said[k])
    if champion:
        results["champion"] = by_regime(test, predict(load(champion, test.schema), test))
    return results


def say(text):
    print(text, flush=True)


def duration(text):
    """Nanoseconds of 90m, 24h, 7d."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        value = float(text[:-1]) * units[text[-1]]
    except (ValueError, KeyError, IndexError):
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90m, 24h or 7d")
    return int(value * SECOND)


def share(text):
    value = float(text)
    if not 0 < value < 0.5:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 0.5")
    return value


def moment(text):
    at = datetime.datetime.fromisoformat(text).astimezone(datetime.timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--samples", required=True, help="folder of the gateway's sample log (*.parquet)")
    p.add_argument("--out", required=True, type=pathlib.Path, help="folder in which the model gets a folder of its own")
    p.add_argument("--champion", help="folder of a model to measure beside the new one")
    p.add_argument("--window", type=duration, default="24h", help="train on so much of the newest samples (24h)")
    p.add_argument("--min-rows", type=int, default=2000, help="fewest usable samples (2000)")
    p.add_argument("--max-rows", type=int, default=120_000, help="most to train on, the same share for every regime (120000)")
    p.add_argument("--validation", type=share, default=0.15, help="share of the samples that decides when to stop (0.15)")
    p.add_argument("--test", type=share, default=0.15, help="share of the samples, the newest, to measure on (0.15)")
    p.add_argument("--trees", type=int, default=200, help="most trees a head (200)")
    p.add_argument("--p95-leaf", type=int, default=PARAMETERS["p95"]["min_data_in_leaf"], help="fewest rows in a leaf of the P95 head (400)")
    p.add_argument("--seed", type=int, default=1, help="the same seed, samples and --created give the same model (1)")
    p.add_argument("--threads", type=int, default=1, help="threads to train with; where cores are shared, more than one can take far longer (1)")
    p.add_argument("--created", type=moment, default=None, help="time to write into the manifest (now)")
    p.add_argument("--source", default="", help="text for the manifest: where the samples come from")
    p.add_argument("--end-with-stdin", action="store_true", help="end when the standard input does: with the program that holds it")
    return p


def end_with_stdin():
    def wait():
        while os.read(0, 4096):  # sys.stdin would be locked when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main():
    options = parser().parse_args()
    options.created = options.created or moment(datetime.datetime.now(datetime.timezone.utc).isoformat())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.end_with_stdin:
        end_with_stdin()
    try:
        train(options)
    except (Unfit, OSError) as e:
        sys.exit(f"train: {e}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
