"""One rank that joins a group and says over which backend: run by a stack's Python.

PYTHONPATH=run/recipes RANK=0 WORLD_SIZE=2 ... STACK/bin/python tests/backend_checks.py BACKEND
"""

import json
import os
import sys

from ranks import (
    UserError,
    backend_in_use,
    gather,
    import_backend,
    join_group,
    leave,
    read_place,
    report_error,
)


def meet(backend: str) -> None:
    """Join, and show that the group works: every rank's number, and their sum through the backend itself."""
    import torch

    place = read_place(os.environ)
    join_group(place, backend, os.environ)
    total = torch.tensor([place.rank + 1.0])
    torch.distributed.all_reduce(total)
    said = {"backend": backend_in_use(), "ranks": gather(place, place.rank), "sum": total.item()}
    print(json.dumps(said), flush=True)
    torch.distributed.barrier()


def refusals() -> None:
    """What is said of backends that are not to be had, in one process."""
    for name, module in json.loads(sys.argv[2]):
        try:
            import_backend(name, module)
        except UserError as error:
            print(error)
        else:
            print("imported")


try:
    refusals() if sys.argv[1] == "refusals" else meet(sys.argv[1])
except UserError as error:
    report_error(int(os.environ["RANK"]), str(error))
    leave(1)
leave(0)
