"""run/speed: each part against what it stands for. The checks run under a stack's Python: speed_checks.py."""

import os
import subprocess
from pathlib import Path

import pytest

from run import recipes
from run.summary import RankSpeed, RunSummary

RECIPES = Path(recipes.__file__).parent
CHECKS = Path(__file__).with_name("speed_checks.py")


@pytest.mark.stack
@pytest.mark.parametrize(
    "check",
    [
        "unpadded_is_exact",
        "real_model_is_exact",
        "stock_forward_where_asked_for",
        "layer_with_dropout",
        "dropout_is_fair",
        "dropout_is_repeatable",
        "models_dropout",
        "compressed_gradients",
        "equal_work",
        "precision",
        "time_is_split",
        "operations_are_counted",
        "rates_of_runs_short_and_long",
        "advice",
    ],
)
def test_part(stack, check):
    path = os.pathsep.join(map(str, (RECIPES.parent, RECIPES)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [f"{stack}/bin/python", str(CHECKS), check]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def test_the_summary_says_where_the_time_went():
    shares = {
        "compute": 0.7,
        "all_reduce": 0.1,
        "waiting": 0.19,
        "data": 0.01,
        "peak_share": 0.42,
        "slowest": 1,
    }
    metrics = {"time": shares, "advice": "the others wait for rank 1: see what else runs on its node"}
    speeds = (RankSpeed(0, "n01", 5.0), RankSpeed(1, "n02", 4.0))
    lines = RunSummary("id", ("n01", "n02"), 2, (1, 1), 9.0, speeds=speeds, metrics=metrics).lines()
    shown = "compute 70 %, all-reduce 10 %, waiting for the slowest rank 19 %, data 1 %"
    assert f"time: {shown}; 42 % of the peak of these CPUs" in lines
    assert "advice: the others wait for rank 1: see what else runs on n02" in lines
    assert not [line for line in RunSummary("id", ("n01",), 1, (1,), 9.0).lines() if "time" in line]
