"""Tests of the trainer: python -m unittest discover deploy/trainer"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import train

NAMES = ["prompt_tokens", "running", "kv_use", "noise", "base"]
EPOCH = 1_796_040_000 * train.SECOND


def law(x):
    """Median of log(TTFT / base); the noise around it has deviation 0.1."""
    return 0.4 * (x[:, 1] > 8) - 0.3 * np.nan_to_num(x[:, 2])


def table(n, seed=1, **changes):
    """n samples of a known law, 200 ms apart, nine in ten of them idle."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(1, 4000, n), rng.integers(0, 16, n), rng.random(n), rng.random(n), 0.05 + rng.random(n)]).astype(float)
    x[rng.random(n) < 0.2, 2] = np.nan
    columns = {name: x[:, i] for i, name in enumerate(NAMES)} | {
        "at": EPOCH + np.arange(n) * train.SECOND // 5,
        "backend": rng.choice(["a", "b"], n, p=[0.8, 0.2]),
        "regime": rng.choice(train.REGIMES, n, p=[0.9, 0.05, 0.03, 0.02]),
        "served": np.full(n, "analytic"),
        "ttft": x[:, 4] * np.exp(law(x) + 0.1 * rng.standard_normal(n)),
        "censored": np.zeros(n, bool),
        "analytic_p50": x[:, 4], "analytic_p95": 1.5 * x[:, 4],
        "linear_p50": np.full(n, np.nan), "linear_p95": np.full(n, np.nan),
    } | changes
    t = pa.table(columns)
    return t.set_column(t.column_names.index("at"), "at", t.column("at").cast(pa.timestamp("ns", tz="UTC")))


def store(folder, t, schema="0123456789abcdef", name="a.parquet"):
    pq.write_table(t.replace_schema_metadata({"firsttoken.schema": schema, "firsttoken.features": ",".join(NAMES)}), folder / name)
    return folder


def samples(t):
    with tempfile.TemporaryDirectory() as folder:
        return train.read(store(pathlib.Path(folder), t))


def options(*more):
    return train.parser().parse_args(["--samples", "s", "--out", "o", "--threads", "1", *more])


class Quiet(unittest.TestCase):
    def setUp(self):
        self.said = io.StringIO()
        self.enterContext(contextlib.redirect_stdout(self.said))
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))


class Reading(Quiet):
    def test_rows_come_in_the_order_of_time(self):
        t = table(100)
        store(self.folder, t.slice(50).take(pa.array(np.random.default_rng(1).permutation(50))), name="a.parquet")
        store(self.folder, t.slice(0, 50), name="b.parquet")
        got = train.read(self.folder)
        np.testing.assert_array_equal(got.ttft, t.column("ttft").to_numpy())
        self.assertTrue(np.isnan(got.said["linear"]["p50"]).all())
        np.testing.assert_array_equal(got.said["served"]["p95"], got.said["analytic"]["p95"])

    def test_what_cannot_be_read_is_named(self):
        with self.assertRaisesRegex(train.Unfit, "has no files of samples"):
            train.read(self.folder)
        store(self.folder, table(10))
        store(self.folder, table(10), schema="fedcba9876543210", name="b.parquet")
        with self.assertRaisesRegex(train.Unfit, "b.parquet.*fedcba9876543210.*a.parquet.*0123456789abcdef"):
            train.read(self.folder)
        pq.write_table(table(10), self.folder / "b.parquet")
        with self.assertRaisesRegex(train.Unfit, "b.parquet does not say"):
            train.read(self.folder)
        (self.folder / "b.parquet").write_text("no Parquet")
        with self.assertRaisesRegex(train.Unfit, "b.parquet cannot be read"):
            train.read(self.folder)
        store(self.folder, table(10).drop_columns(["kv_use"]), name="b.parquet")
        with self.assertRaisesRegex(train.Unfit, "kv_use"):
            train.read(self.folder)


class Choosing(Quiet):
    def test_too_few(self):
        with self.assertRaisesRegex(train.Unfit, "70 usable samples, 2000 are needed"):
            base = np.where(np.arange(100) < 30, np.nan, 0.1)
            train.usable(samples(table(100, base=base)), train.duration("24h"), 2000)
        self.assertIn("30 without an analytic", self.said.getvalue())

    def test_window(self):
        kept = train.usable(samples(table(1000)), train.duration("60s"), 1)
        self.assertEqual(len(kept), 301)

    def test_windows_hold_only_what_was_known(self):
        n = 1000
        ttft = np.where(np.arange(n) % 10 == 0, 30.0, 0.1)
        parts = train.split(samples(table(n, ttft=ttft)), 0.15, 0.15)
        begins = [parts[1].at[0], parts[2].at[0]]
        for part, end in zip(parts, begins):
            self.assertLessEqual(part.known.max(), end)
        self.assertTrue((parts[0].ttft == 30).any())
        self.assertEqual(len(parts[2]), 150)

    def test_reservoir_does_not_drown_rare_regimes(self):
        got = train.reservoir(samples(table(10_000)), 1000, np.random.default_rng(1))
        counts = {r: int((got.regime == r).sum()) for r in train.REGIMES}
        self.assertEqual(len(got), 1000)
        self.assertGreater(counts["kv_full"], 150)
        self.assertLess(counts["idle"], 400)
        idle = got.backend[got.regime == "idle"]
        self.assertAlmostEqual(np.mean(idle == "a"), 0.5, delta=0.05)
        self.assertTrue((np.diff(got.at) > 0).all())

    def test_shares(self):
        for sizes, limit, want in (([10, 10], 6, [3, 3]), ([1, 10], 6, [1, 5]), ([3, 2], 9, [3, 2]), ([], 5, [])):
            self.assertEqual(train.shares(sizes, limit), want)

    def test_bounds_count_where_they_exceed_what_was_predicted(self):
        s = samples(table(4, base=np.full(4, 1.0), analytic_p50=np.array([1, 1, 1, np.nan]), analytic_p95=np.array([2, 2, 2, np.nan]),
                          ttft=np.array([0.5, 1.5, 3, 1.1]), censored=np.ones(4, bool)))
        for head, want in (("p50", [1.5, 3, 1.1]), ("p95", [3, 1.1])):
            np.testing.assert_allclose(np.exp(train.labels(s, head)[1]), want)


class Measuring(unittest.TestCase):
    def test_metrics(self):
        """The same numbers as in the tests of the gateway's own."""
        s = samples(table(5, ttft=np.array([0.1, 0.2, 0.4, 0.15, 0.4]), censored=np.array([False] * 3 + [True] * 2)))
        m = train.metrics(s, {"p50": np.full(5, 0.1), "p95": np.full(5, 0.2)})
        self.assertEqual(m["rows"], 5)
        for name, want in {"mape": (0 + 0.5 + 0.75) / 3, "median_error": 0.5, "coverage": 0.5,
                           "pinball": (0.05 + 2 * 0.95) * np.log(2) / 5}.items():
            self.assertAlmostEqual(m[name], want, msg=name)

    def test_nothing_to_measure(self):
        s = samples(table(5))
        m = train.metrics(s, s.said["linear"])
        self.assertEqual(m, {"rows": 0, "mape": None, "median_error": None, "coverage": None, "pinball": None})

    def test_arguments(self):
        self.assertEqual(train.duration("90m"), 5400 * train.SECOND)
        for bad in ("", "5", "h", "-1h", "nanh"):
            with self.assertRaises(argparse.ArgumentTypeError):
                train.duration(bad)


class Training(Quiet):
    """Real runs, on the law that the samples were made by."""

    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.place.name)
        (root / "samples").mkdir()
        store(root / "samples", table(12_000))
        cls.options = ["--samples", str(root / "samples"), "--out", str(root / "out"), "--created", "2026-11-30T12:00:00Z"]
        with contextlib.redirect_stdout(io.StringIO()):
            cls.model = cls.run_with()
        cls.manifest = json.loads((cls.model / "manifest.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    @classmethod
    def run_with(cls, *more):
        parsed = train.parser().parse_args([*cls.options, "--threads", "1", *more])
        return train.train(parsed)

    def test_heads_learn_the_law(self):
        boosters = train.load(self.model, "0123456789abcdef")
        fresh = samples(table(3000, seed=2))
        truth = law(fresh.features)
        np.testing.assert_allclose(boosters["p50"].predict(fresh.features), truth, atol=0.15)
        covered = np.mean(fresh.ttft <= train.predict(boosters, fresh)["p95"])
        self.assertTrue(0.93 <= covered <= 0.97, covered)
        self.assertLess(train.metrics(fresh, train.predict(boosters, fresh))["mape"], 0.09)  # the noise alone is 0.08

    def test_manifest(self):
        m = self.manifest
        self.assertEqual(m["id"], self.model.name)
        self.assertEqual((m["format"], m["schema"], m["base"]), (train.FORMAT, "0123456789abcdef", "analytic"))
        self.assertRegex(m["id"], "^20261130T120000-[0-9a-f]{6}$")
        self.assertEqual(set(m["metrics"]), {"all", *train.REGIMES})
        self.assertEqual(m["metrics"]["all"]["rows"], 1800)
        self.assertEqual(m["training"]["lightgbm"], "4.7.0")
        test = EPOCH + int(12_000 * 0.85) * train.SECOND // 5
        self.assertLess(m["training"]["to"], train.instant(test))
        self.assertEqual(m["training"]["from"], train.instant(EPOCH))

    def test_golden_rows(self):
        boosters = train.load(self.model, "0123456789abcdef")
        rows = self.manifest["golden"]
        self.assertGreaterEqual(len(rows), 8)
        self.assertTrue(any(all(v is None for v in g["row"]) for g in rows))
        for g in rows:
            row = np.array([[np.nan if v is None else v for v in g["row"]]])
            for head in train.ALPHAS:
                self.assertEqual(boosters[head].predict(row)[0], g[head])

    def test_the_same_seed_gives_the_same_model(self):
        again = self.run_with("--out", str(self.folder), "--threads", "2")
        for f in ("manifest.json", "p50.txt", "p95.txt"):
            self.assertEqual((again / f).read_bytes(), (self.model / f).read_bytes())
        other = self.run_with("--out", str(self.folder), "--seed", "2")
        self.assertNotEqual(other.name, self.model.name)

    def test_champion_is_measured(self):
        self.run_with("--out", str(self.folder), "--champion", str(self.model))
        self.assertRegex(self.said.getvalue(), r"all +champion")
        self.assertRegex(self.said.getvalue(), r"all +analytic")
        with self.assertRaisesRegex(train.Unfit, "champion in .* cannot be read"):
            self.run_with("--champion", str(self.folder))

    def test_a_publication_that_fails_leaves_nothing(self):
        with self.assertRaises(ValueError):
            train.publish(self.folder, train.load(self.model, "0123456789abcdef"), {"created": "2026-11-30", "odd": float("nan")})
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name != ".lock"], [])


class Program(Quiet):
    def start(self, *more, **how):
        return subprocess.Popen([sys.executable, train.__file__, "--out", str(self.folder / "out"), *more],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)

    def test_errors_are_one_line(self):
        p = self.start("--samples", str(self.folder))
        out, err = p.communicate(timeout=60)
        self.assertEqual((p.returncode, err.count("\n")), (1, 1), err)
        self.assertIn("train: ", err)

    def test_it_does_not_wait_for_its_standard_input(self):
        store(self.folder, table(3000))
        p = self.start("--samples", str(self.folder), "--end-with-stdin", stdin=subprocess.PIPE)
        self.assertEqual(p.wait(timeout=60), 0, p.stderr.read())
        p.stdin.close(), p.stdout.close(), p.stderr.close()

    def test_it_ends_with_its_standard_input(self):
        store(self.folder, table(60_000))
        p = self.start("--samples", str(self.folder), "--end-with-stdin", "--trees", "100000", stdin=subprocess.PIPE)
        p.stdout.readline()
        p.stdin.close()
        p.wait(timeout=60)
        self.assertEqual(p.returncode, 143)
        p.stdout.close(), p.stderr.close()
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
