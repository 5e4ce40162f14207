"""Steps about Python: a virtual environment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from provision.errors import SettingsError
from provision.host import Host, quoted

_RECORD = ".clusterctl"
_LISTING = "cd %s/lib/python3*/site-packages && ls -d *.dist-info"

# Environments cannot be moved, so a new one is built where it stays, and the link that is its path is
# turned to it at once. What killed runs left is removed, as is the one before.
_BUILD = f"""
path=%s; digest=%s; python=%s
ours=$(basename "$path").clusterctl-
live=$(readlink "$path")
if {{ [ -e "$path" ] || [ -n "$live" ]; }} && [ "${{live#"$ours"}}" = "$live" ]; then
    echo "$path is no environment of clusterctl's; remove it, or choose another path" >&2; exit 1
fi
set -e
umask 022; mkdir -p "$(dirname "$path")"; cd "$(dirname "$path")"
for old in "$ours"????????; do [ "$old" = "$live" ] || rm -rf "$old"; done
new=$(mktemp -d "$PWD/${{ours}}XXXXXXXX"); chmod 755 "$new"
trap 'rm -rf "$new"' EXIT
"$python" -m venv "$new"
cat > "$new/requirements.txt"
"$new/bin/python" -m pip install -q --no-input --disable-pip-version-check -r "$new/requirements.txt" 1>&2
listing=$({_LISTING % '"$new"'})
printf '%%s\\n%%s\\n' "$digest" "$listing" > "$new/{_RECORD}"
trap - EXIT
ln -sfn "$(basename "$new")" "${{ours}}new" && mv -fT "${{ours}}new" "$path"
[ -z "$live" ] || rm -rf "$live"
"""
_BUILD_LIMIT_S = 1800.0


@dataclass(frozen=True)
class PipEnvironment:
    """A virtual environment with what pip installs for the lines of a requirements file.

    `requirements` are such lines: packages ("numpy==2.2.0"), pip's options ("--index-url ..."), or a whole
    lock: `tuple(Path("lock.txt").read_text().splitlines())`. When they change, or a package in it did, a new
    environment is built beside and takes its place; `path` is a link to it. Needs the package python3-venv
    on Debian and Ubuntu.
    """

    path: str
    requirements: tuple[str, ...] = field(repr=False)
    python: str = "/usr/bin/python3"

    def __post_init__(self) -> None:
        if isinstance(self.requirements, str) or not self.path.startswith("/") or self.path.endswith("/"):
            raise SettingsError(
                f"PipEnvironment({self.path!r}): a full path, and a tuple of requirement lines are wanted"
            )

    @property
    def name(self) -> str:
        return f"environment {self.path}"

    @property
    def probe(self) -> str:
        record = quoted("cat %s || exit", f"{self.path}/{_RECORD}")
        return f"{record}; echo --; {_LISTING % quoted('%s', self.path)}"

    def drift(self, actual: str) -> str | None:
        digest, _, rest = actual.partition("\n")
        recorded, _, listing = ("\n" + rest).partition("\n--\n")
        if len(digest) != 64:
            return "not built"
        if digest != self._digest:
            return "built from other requirements"
        changed = sorted(set(recorded.split()) ^ set(listing.split()))
        names = ", ".join(name.removesuffix(".dist-info") for name in changed[:4])
        return f"packages changed since it was built: {names}" if changed else None

    def apply(self, host: Host) -> None:
        host.run(
            _BUILD, self.path, self._digest, self.python,
            sudo=True, stdin=self._text.encode(), timeout_s=_BUILD_LIMIT_S,
        )  # fmt: skip

    @property
    def _text(self) -> str:
        return "".join(f"{line}\n" for line in self.requirements)

    @property
    def _digest(self) -> str:
        return hashlib.sha256(f"{self.python}\n{self._text}".encode()).hexdigest()
