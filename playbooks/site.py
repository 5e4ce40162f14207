"""site: everything that makes a node right, in order."""

from __future__ import annotations

from playbooks import amx, base, ssh_mesh, training_env

PLAYBOOKS = (
    base.PLAYBOOK,
    ssh_mesh.KEY_PLAYBOOK,
    ssh_mesh.PLAYBOOK,
    training_env.PLAYBOOK,
    training_env.VERIFY_PLAYBOOK,
    amx.PLAYBOOK,
)
