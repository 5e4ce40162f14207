"""The steps that playbooks are written with. docs/write-a-playbook.md has a table of them."""

from provision.steps.accounts import User
from provision.steps.checks import Verdict
from provision.steps.commands import Command, Download
from provision.steps.edits import Block, Line
from provision.steps.files import Absent, Directory, Symlink, TextFile
from provision.steps.kernel import Sysctl
from provision.steps.mounts import Mount
from provision.steps.packages import AptPackages, DnfPackages, packages_for
from provision.steps.python import PipEnvironment
from provision.steps.services import Service
from provision.steps.ssh import AuthorizedKey, MeshKey

__all__ = [
    "Absent",
    "AptPackages",
    "AuthorizedKey",
    "Block",
    "Command",
    "Directory",
    "DnfPackages",
    "Download",
    "Line",
    "MeshKey",
    "Mount",
    "PipEnvironment",
    "Service",
    "Symlink",
    "Sysctl",
    "TextFile",
    "User",
    "Verdict",
    "packages_for",
]
