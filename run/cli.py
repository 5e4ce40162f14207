"""The commands and their options. What each does is in run/commands, imported only when it is used."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer

from provision.errors import ClusterctlError

app = typer.Typer(
    name="clusterctl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From nothing to distributed fine-tuning on CPU nodes whose AMX units are proven to work.",
    epilog="""[bold]A first run[/bold], on this machine, with nothing configured:

clusterctl up --nodes 4

clusterctl check-amx

clusterctl train run_qa

clusterctl down""",
)

Command = ParamSpec("Command")


def _ended(command: Callable[Command, int]) -> Callable[Command, None]:
    """The command with its exit code raised, every expected failure as one line on stderr."""

    @functools.wraps(command)
    def run(*args: Command.args, **kwargs: Command.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except ClusterctlError as error:
            print(f"clusterctl: {error}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt:
            print("\nclusterctl: interrupted; `clusterctl status` shows what stands", file=sys.stderr)
            code = 130
        except PermissionError as error:
            print(f"clusterctl: {error.filename}: {error.strerror}; may you write there?", file=sys.stderr)
            code = 1
        except BrokenPipeError:  # `clusterctl status | head`
            sys.stderr.close()
            code = 141
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # all is done; a late Ctrl-C must not change the exit code
        raise typer.Exit(code)

    return run


# Panels of --help.
MEASURE = "First looks, and proof"
RANKS = "Where and how ranks run"
CONTAINERS = "Containers and Kubernetes"
GOING_ON = "Runs that were interrupted"
EC2 = "EC2"
OWN_MACHINES = "Your own machines"
ALSO = "While it stands"
LOOK = "Inventories, playbooks, stacks"

Name = Annotated[str | None, typer.Option("--name", help="The cluster; needed only where there are several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Region = Annotated[
    str | None, typer.Option("--region", help="EC2: what tags show there, without this machine's record.")
]
AllRegions = Annotated[bool, typer.Option("--all-regions", help="Every region that the account has enabled.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before anything is removed.")]


@app.command()
@_ended
def up(
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", "-i", help="YAML; without one, nodes are made on this machine."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="How many; again with another number resizes.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The cluster's name.")] = None,
    yes: Yes = False,
    check: Annotated[bool, typer.Option("--check", help="Say what would change; change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show files before and after.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made and what it costs; make nothing.")
    ] = False,
    bake: Annotated[
        bool,
        typer.Option(
            "--bake", help="Make an image of the head, start the others from it.", rich_help_panel=EC2
        ),
    ] = False,
    replace: Annotated[
        list[str] | None, typer.Option("--replace", help="Remove this node and make it anew (repeatable).")
    ] = None,
    accept_new_host_keys: Annotated[
        bool,
        typer.Option(
            "--accept-new-host-keys",
            help="Trust host keys that nobody vouched for.",
            rich_help_panel=OWN_MACHINES,
        ),
    ] = False,
    password_fd: Annotated[
        int | None,
        typer.Option(
            "--password-fd", help="The first login's password, from this fd.", rich_help_panel=OWN_MACHINES
        ),
    ] = None,
    password_command: Annotated[
        str | None,
        typer.Option(
            "--password-command", help="Or what this prints: 'pass show lab'.", rich_help_panel=OWN_MACHINES
        ),
    ] = None,
    sudo_password_fd: Annotated[
        int | None,
        typer.Option(
            "--sudo-password-fd", help="sudo's, where it is another one.", rich_help_panel=OWN_MACHINES
        ),
    ] = None,
    sudo_password_command: Annotated[
        str | None,
        typer.Option("--sudo-password-command", help="Or what this prints.", rich_help_panel=OWN_MACHINES),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", help="Give up on this one, as it is (repeatable).", rich_help_panel=OWN_MACHINES
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Bring up nodes, or make those that stand right; again = converge, resize."""
    from run.commands.operator import Answers
    from run.commands.up import UpOptions
    from run.commands.up import up as run_up

    answers = Answers(
        accept_new_host_keys, password_fd, password_command, sudo_password_fd, sudo_password_command
    )
    return run_up(
        UpOptions(
            inventory,
            name,
            nodes,
            yes,
            check,
            diff,
            as_json,
            dry_run,
            bake,
            tuple(replace or ()),
            tuple(forget or ()),
            answers,
        )
    )


@app.command("check-amx")
@_ended
def check_amx(
    name: Name = None,
    rung: Annotated[
        int | None,
        typer.Option("--rung", min=1, max=7, help="Climb so far; else to 6, as far as each node gets."),
    ] = None,
    speed: Annotated[bool, typer.Option("--speed", help="Rung 7: measure every node, some seconds.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every 5 s, until Ctrl-C.")] = False,
    ab: Annotated[
        bool,
        typer.Option("--ab", help="Train some steps with and without a capped oneDNN, and show the ratio."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Prove AMX on every node: where it fails, whose fault it is, what to do. Exit code 1 if any has none.

    Rungs: 1 lscpu's flags, 2 CPUID, 3 the kernel's state, 4 its permission, 5 a tile multiplied and right,
    6 the kernel that torch chooses, 7 speed (only with --speed or --rung 7).
    """
    from run.commands.check_amx import CheckOptions
    from run.commands.check_amx import check_amx as run_check

    return run_check(CheckOptions(name, as_json, rung, speed, watch, ab))


@app.command(context_settings={"ignore_unknown_options": True})
@_ended
def train(
    program: Annotated[
        str, typer.Argument(help="What to train: run_qa, run_pretraining, or the path of your own script.")
    ],
    script_args: Annotated[
        list[str] | None, typer.Argument(help="After `--`: its arguments, passed on as they are.")
    ] = None,
    name: Name = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="It is a Python module of the folder you are in.")
    ] = False,
    bash: Annotated[
        bool, typer.Option("--bash", "-c", help="It is a bash line, run in a copy of the folder you are in.")
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="A minute on one node: does it work, how long would an epoch take?",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Some minutes on the nodes: which ranks, precision and micro-batch are fastest for these "
            "arguments, at the same global batch? The best is kept, and later runs use it.",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    no_tuned: Annotated[
        bool,
        typer.Option(
            "--no-tuned", help="Without what --tune has kept: the default layout.", rich_help_panel=MEASURE
        ),
    ] = False,
    launcher: Annotated[
        str,
        typer.Option(
            "--launcher",
            help="mpirun (the default), torchrun, docker or kubernetes.",
            show_default=False,
            rich_help_panel=RANKS,
        ),
    ] = "",
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", help="How many take part; also LEAST:MOST, but under mpirun.", rich_help_panel=RANKS
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts",
            min=0,
            help="All but mpirun: how often lost ranks begin anew.",
            rich_help_panel=RANKS,
        ),
    ] = 0,
    idle_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--idle-timeout",
            min=1,
            help="Seconds in which no rank prints or computes (600).",
            rich_help_panel=RANKS,
        ),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings", help="A YAML file: image, volumes, cpu, namespace...", rich_help_panel=CONTAINERS
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="One of these settings, KEY=VALUE; wins over the file (repeatable).",
            rich_help_panel=CONTAINERS,
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", help="kubernetes: pytorchjob or trainjob.", rich_help_panel=CONTAINERS)
    ] = "pytorchjob",
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="kubernetes: kubectl's context, else its current one.",
            rich_help_panel=CONTAINERS,
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="kubernetes: the job is not deleted when it has ended.", rich_help_panel=CONTAINERS
        ),
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="gloo, ccl, auto, or what --backend-module registers.", rich_help_panel=RANKS
        ),
    ] = None,
    backend_module: Annotated[
        str | None,
        typer.Option(
            "--backend-module",
            help="Imported by every rank: a module there, or a .py file here.",
            rich_help_panel=RANKS,
        ),
    ] = None,
    ppn: Annotated[
        int | None,
        typer.Option(
            "--ppn", min=1, help="Ranks on each node; else one per NUMA node.", rich_help_panel=RANKS
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, help="OpenMP threads of each rank; else its cores.", rich_help_panel=RANKS
        ),
    ] = None,
    rendezvous_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--rendezvous-timeout",
            min=1,
            help="Seconds for all ranks to meet (120).",
            rich_help_panel=RANKS,
        ),
    ] = None,
    runs_folder: Annotated[
        Path, typer.Option("--runs", help="Where the run's model, metrics and logs are brought.")
    ] = Path("runs"),
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the mpirun line, environment and files; start nothing.",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Go on with this run, or the last: its arguments, its checkpoint.",
            rich_help_panel=GOING_ON,
        ),
    ] = None,
    replace_nodes: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Nodes that are about to end are made anew, and the run goes on.",
            rich_help_panel=GOING_ON,
        ),
    ] = False,
    prove_amx: Annotated[
        bool,
        typer.Option(
            "--prove-amx",
            help="Show what multiplied in three of its steps: AMX, or a fallback.",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Train on all nodes, ranks laid out from each node's own cores.

    For example: clusterctl train run_qa -- --num_train_epochs 2 --learning_rate 3e-4

    Your own script is copied to all nodes with the files beside it; what it writes on the head comes back.
    """
    if module and bash:
        raise typer.BadParameter("--module or --bash, not both")
    from run.commands.launch import KubernetesChoice, TrainOptions
    from run.commands.train import train as run_train

    return run_train(
        TrainOptions(
            program,
            tuple(script_args or ()),
            name,
            ppn,
            threads,
            rendezvous_timeout_s,
            runs_folder,
            dry_run,
            as_json,
            resume,
            replace_nodes,
            prove_amx,
            "module" if module else "bash" if bash else "auto",
            launcher,
            nodes,
            restarts,
            idle_timeout_s,
            settings_file,
            tuple(settings or ()),
            KubernetesChoice(kind, context, keep),
            backend,
            backend_module,
            smoke,
            tune,
            not no_tuned,
        )
    )


@app.command(rich_help_panel=ALSO)
@_ended
def status(name: Name = None, region: Region = None, as_json: Json = False) -> int:
    """Show what stands. Exit code 1 if a node does not run."""
    from run.commands.status import status as run_status

    return run_status(name, region, as_json=as_json)


@app.command(context_settings={"ignore_unknown_options": True}, rich_help_panel=ALSO)
@_ended
def ssh(
    node: Annotated[str | None, typer.Argument(help="The node; without one, the head.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="A command to run there.")] = None,
    name: Name = None,
) -> int:
    """Open a shell on a node."""
    from run.commands.shell import ssh as run_ssh

    return run_ssh(name, node, command or [])


@app.command("exec", context_settings={"ignore_unknown_options": True}, rich_help_panel=ALSO)
@_ended
def exec_(
    command: Annotated[list[str], typer.Argument(help="After `--`: the command and its arguments.")],
    name: Name = None,
    as_json: Json = False,
) -> int:
    """Run a command on all nodes; the same output is shown once."""
    from run.commands.shell import exec_on_all

    return exec_on_all(name, command, as_json=as_json)


@app.command()
@_ended
def down(
    name: Name = None,
    region: Region = None,
    images: Annotated[
        bool, typer.Option("--images", help="EC2: also the images baked from this cluster.")
    ] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Your own machines: the training stack goes too.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Your own machines: those out of reach stay as they are.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove the cluster: nothing is left behind, or billed. Your own machines are given back as they were.

    Safe to run again.
    """
    from run.commands.down import down as run_down

    return run_down(name, region, images=images, purge=purge, forget=forget, yes=yes, as_json=as_json)


@app.command(rich_help_panel=EC2)
@_ended
def extend(
    ttl: Annotated[str, typer.Argument(help="So long from now: 90m, 12h, 3d; or none.")],
    name: Name = None,
    as_json: Json = False,
) -> int:
    """Let a cluster end later, or earlier, than its ttl says."""
    from run.commands.fleet import extend as run_extend

    return run_extend(ttl, name, as_json=as_json)


@app.command(rich_help_panel=EC2)
@_ended
def ls(region: Region = None, all_regions: AllRegions = False, as_json: Json = False) -> int:
    """List every cluster in the account, whoever made it."""
    from run.commands.fleet import ls as run_ls

    return run_ls(region, all_regions=all_regions, as_json=as_json)


@app.command(rich_help_panel=EC2)
@_ended
def gc(
    region: Region = None, all_regions: AllRegions = False, yes: Yes = False, as_json: Json = False
) -> int:
    """Remove what is left of half-made or expired clusters."""
    from run.commands.fleet import gc as run_gc

    return run_gc(region, all_regions=all_regions, yes=yes, as_json=as_json)


@app.command(rich_help_panel=EC2)
@_ended
def images(
    region: Region = None,
    prune: Annotated[bool, typer.Option("--prune", help="Delete all but the newest of each stack.")] = False,
    keep: Annotated[int, typer.Option("--keep", min=0, help="How many of each stack --prune leaves.")] = 1,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """List the images that `up --bake` made; --prune deletes old ones."""
    from run.commands.fleet import images as run_images

    return run_images(region, prune=prune, keep=keep, yes=yes, as_json=as_json)


playbook_app = typer.Typer(
    no_args_is_help=True, help="List, show and run playbooks, the site's and your own."
)
app.add_typer(playbook_app, name="playbook", rich_help_panel=LOOK)


@playbook_app.command("list")
@_ended
def playbook_list(name: Name = None, as_json: Json = False) -> int:
    """The playbooks in the order in which `up` runs them."""
    from run.commands.playbook import list_all

    return list_all(name, as_json=as_json)


@playbook_app.command("show")
@_ended
def playbook_show(
    playbook: Annotated[str, typer.Argument(help="Its name or path.")],
    name: Name = None,
    as_json: Json = False,
) -> int:
    """What each step wants of which node; nothing is changed."""
    from run.commands.playbook import show

    return show(playbook, name, as_json=as_json)


@playbook_app.command("run")
@_ended
def playbook_run(
    playbooks: Annotated[list[str], typer.Argument(help="Names or paths; `site` is all that `up` runs.")],
    name: Name = None,
    limit: Annotated[
        str | None, typer.Option("--limit", "-l", help="These nodes alone: names, patterns, head, workers.")
    ] = None,
    tags: Annotated[
        str | None, typer.Option("--tags", "-t", help="Playbooks and steps with one of these tags or names.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="This step alone: its name or a pattern.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would change; change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show files before and after.")] = False,
    as_json: Json = False,
) -> int:
    """Bring nodes to what playbooks want."""
    from run.commands.playbook import PlaybookOptions, run

    return run(PlaybookOptions(tuple(playbooks), name, limit, tags, step, check, diff, as_json))


stack_app = typer.Typer(no_args_is_help=True, help="List, show and verify the stacks that nodes train with.")
app.add_typer(stack_app, name="stack", rich_help_panel=LOOK)


@stack_app.command("list")
@_ended
def stack_list(as_json: Json = False) -> int:
    """The kinds of stacks there are."""
    from run.commands.stack import list_kinds

    return list_kinds(as_json=as_json)


@stack_app.command("show")
@_ended
def stack_show(
    kind: Annotated[str, typer.Argument(help="A kind, or the path of a lock of your own (.txt).")],
    as_json: Json = False,
) -> int:
    """Show what is in a stack, where it comes from, and what is archived."""
    from run.commands.stack import show

    return show(kind, as_json=as_json)


@stack_app.command("verify")
@_ended
def stack_verify(name: Name = None, as_json: Json = False) -> int:
    """Compare what is installed with the lock, and import it, on all nodes. Exit code 1 if any differs."""
    from run.commands.stack import verify

    return verify(name, as_json=as_json)


@app.command(rich_help_panel=LOOK)
@_ended
def image(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write; none of your files is overwritten.")
    ],
    stack: Annotated[str, typer.Option("--stack", help="The stack that is in it.")] = "native",
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="The image's name.")] = None,
    package: Annotated[
        list[str] | None,
        typer.Option("--package", "-p", help="What your script needs beside it; repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Write what a container image of a stack is built from, for --launcher docker and kubernetes."""
    from run.commands.kubernetes import image as write_image

    return write_image(output, stack, tag, packages=package or (), as_json=as_json)


@app.command(rich_help_panel=ALSO)
@_ended
def log(
    node: Annotated[str | None, typer.Argument(help="The node; without one, each.")] = None,
    name: Name = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many commands of each node.")] = 20,
    as_json: Json = False,
) -> int:
    """Show the last commands that were run on a node, and how they ended."""
    from run.commands.log import log as show_log

    return show_log(name, node, last, as_json=as_json)


@app.command(rich_help_panel=LOOK)
@_ended
def init(
    kind: Annotated[str, typer.Argument(help="local, metal, ec2 or ec2-metal.")] = "local",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; else its kind, here. Never overwritten.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Write a commented inventory to begin with."""
    from run.commands.inventory import init as run_init

    return run_init(kind, output, as_json=as_json)


@app.command(rich_help_panel=LOOK)
@_ended
def inventory(
    name: Name = None,
    as_list: Annotated[
        bool, typer.Option("--list", "--json", help="All hosts, groups and variables, as Ansible wants them.")
    ] = False,
    host: Annotated[str | None, typer.Option("--host", help="The variables of this node, as JSON.")] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", help="Write a file for `ansible-playbook -i` that always tells what stands."
        ),
    ] = None,
) -> int:
    """Show a cluster as Ansible's dynamic inventory: playbooks of your own run on it."""
    from run.commands.inventory import InventoryOptions
    from run.commands.inventory import inventory as run_inventory

    return run_inventory(InventoryOptions(name, as_list, host, script))


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except KeyboardInterrupt:  # before the command itself began
        sys.exit(130)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
