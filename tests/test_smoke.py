"""What a minute on one node says of an epoch; and launchers' settings from a file and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import SettingsError
from run.commands.settings import read_settings
from run.events import Event
from run.launchers.pod_settings import KubernetesSettings
from run.smoke import Smoke


def seen(*rows: tuple[float, int, float], limit_s: float = 60) -> Smoke:
    clock = [0.0]
    smoke = Smoke(lambda: clock[0], limit_s)
    for moment, step, epoch in rows:
        clock[0] = moment
        smoke.feed(Event("progress", data={"step": step, "epoch": epoch}))
        smoke.feed(Event("heartbeat", 0))
    return smoke


def test_an_epoch_is_so_many_steps_of_the_time_that_one_takes() -> None:
    smoke = seen((10, 1, 0.01), (20, 11, 0.11), (70, 61, 0.61))  # the first step is left out

    assert smoke.epoch_s == pytest.approx(100)  # 100 steps of a second
    assert smoke.is_over
    assert list(smoke.lines(3))[:5] == [
        "an epoch takes, at best:",
        "    1 node   1 min 40 s",
        "    2 nodes      50.0 s",
        "    4 nodes      25.0 s",
        "what the network adds, the summary of a run on several nodes says",
    ]


def test_too_few_steps_say_nothing() -> None:
    assert seen((10, 1, 0.1), (80, 2, 0.2)).epoch_s is None
    assert "smaller batch" in next(seen((10, 1, 0.1)).lines(1))
    assert not seen().is_over


def test_what_the_command_line_says_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text("image: me/a:1\ncpu: 8\nenvironment: {A: '1'}\n")

    found = read_settings(
        KubernetesSettings, file, ["cpu=16", "environment.B=2", "host_network=true"], {"nodes": 4}
    )
    assert (found.image, found.cpu, found.nodes, found.host_network) == ("me/a:1", 16, 4, True)
    assert found.environment == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("image: a\n", ["cpus=4"], "--set cpus: no such setting; did you mean 'cpu'?"),
        ("image: a\n", ["cpu"], "--set cpu: KEY=VALUE is wanted"),
        ("image: a\n", ["cpu=many"], "cpu is to be a number, not 'many'"),
        ("image: a\n", ["image.x=1"], "image has no parts"),
        ("image: a\nvolum: v\n", [], "pods.yaml:2: unknown key 'volum'; did you mean 'volume'?"),
        ("cpu: 4\n", [], "this launcher needs its image: --set image=..."),
        ("[1]\n", [], "a mapping of settings is wanted"),
        ("image: a\n", ["nodes=4"], "--set nodes: no such setting"),
    ],
)
def test_a_setting_that_is_none_is_told(tmp_path: Path, text: str, given: list[str], said: str) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(KubernetesSettings, file, given, {"nodes": 2})
    assert said in str(caught.value)
