"""Proof that a node's AMX units work: a ladder climbed on the node, judged here.

`ladder.py`, `library.py`, `ab.py` and `capture.py` run on nodes and know nothing of the house, as does
`onednn.py`, which is read on both sides; the other modules are pure.
"""

from __future__ import annotations

import functools
from importlib import resources

from provision.amx.verdict import LIBRARY, TILE
from provision.host import quoted


def ladder_script(last: int = TILE, stack: str = "", *, beyond: bool = False) -> str:
    """The sh line that climbs up to rung `last` on a node and prints one JSON document.

    `stack` is the folder of the stack whose torch rungs 6 and 7 ask; `beyond` asks them even where an
    earlier rung does not hold.
    """
    # -I and -S: nothing of the user's, no site-packages; both save time too.
    script, arguments = "/usr/bin/python3 -IS -c %s --rung %s", [_source("ladder.py"), str(last)]
    if last >= LIBRARY:
        script += " --stack %s --library %s" + (" --beyond" if beyond else "")
        arguments += [f"{stack}/bin/python", _source("library.py")]
    return quoted(script, *arguments)


def ab_script(turns: int, stack: str, share: float) -> str:
    """The sh line that trains on a node with oneDNN as it is and capped, in turn (see ab.py)."""
    names = ("onednn", "capture", "library", "ab")
    sources = [part for name in names for part in (name, _source(f"{name}.py"))]
    words = " ".join(["%s"] * (len(sources) + 5))
    return quoted(words, f"{stack}/bin/python", "-c", _BOOT, *sources, str(turns), str(share))


# Modules from arguments, so that nothing has to be laid down on the node: NAME SOURCE ... TURNS SHARE.
_BOOT = """import sys, types
for name, source in zip(sys.argv[1:-2:2], sys.argv[2:-2:2]):
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), sys.modules[name].__dict__)
sys.modules["ab"].main()"""


@functools.cache
def _source(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text()
