"""A simulated EC2 from the command line: python -m tests.ec2sim start FOLDER, ... stop FOLDER."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.ec2sim.client import World, WorldError


def main() -> None:
    arguments = _parser().parse_args()
    world = World(arguments.folder.resolve())
    try:
        _do(arguments, world)
    except WorldError as error:
        sys.exit(f"simulated EC2: {error}")


def _do(arguments: argparse.Namespace, world: World) -> None:
    if arguments.action == "start":
        World.start(
            arguments.folder,
            detached=True,
            boot_delay_s=arguments.boot_delay,
            terminate_delay_s=arguments.terminate_delay,
            eventual_s=arguments.eventual,
            simulate_cpu=arguments.simulate_cpu,
            stacks=arguments.stacks,
        )
        print(f"a simulated EC2 stands in {world.folder}; nothing here is Amazon's, or costs anything")
    elif arguments.action == "stop":
        world.stop()
    elif arguments.action == "in":
        command = getattr(world, arguments.network)(*arguments.command)
        os.execvpe(command[0], command, os.environ | world.environment)
    elif arguments.action == "resources":
        print(json.dumps(world.resources(), indent=2))
    elif arguments.action == "interrupt":
        world.interrupt(arguments.instance, arguments.notice)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.ec2sim", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    start = actions.add_parser("start", help="start one, which stands until it is stopped")
    stop = actions.add_parser("stop", help="end it with all that is in it")
    inside = actions.add_parser("in", help="run a command in one of its networks, told where the API is")
    resources = actions.add_parser("resources", help="what is there, by type")
    interrupt = actions.add_parser("interrupt", help="take a spot instance, after a notice")
    for action in (start, stop, inside, resources, interrupt):
        action.add_argument("folder", type=Path)
    start.add_argument("--boot-delay", type=float, default=0.3, metavar="S")
    start.add_argument("--terminate-delay", type=float, default=0.5, metavar="S")
    start.add_argument("--eventual", type=float, default=0.0, metavar="S")
    start.add_argument("--simulate-cpu", help="such as sapphire-rapids")
    start.add_argument("--stacks", help="a folder that hosts see at /opt/clusterctl/stacks")
    inside.add_argument("network", choices=("operator", "stranger"))
    inside.add_argument("command", nargs=argparse.REMAINDER)
    interrupt.add_argument("instance")
    interrupt.add_argument("--notice", type=float, default=120.0, metavar="S")
    return parser


if __name__ == "__main__":
    main()
