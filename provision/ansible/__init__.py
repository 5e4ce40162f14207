"""Ansible's YAML inventories as Ansible reads them: groups, ranges, host_vars, precedence.

    patterns    n[01:04]:2222 -> names and a port
    groups      one file -> groups, hosts and their variables
    variables   group_vars/ and host_vars/, and which of several values counts
    reading     a path -> AnsibleInventory, whose listing() is what `ansible-inventory --list` prints
    ssh_args    ansible_ssh_common_args -> what of it clusterctl does

Nothing is evaluated: templates stay as they are, and nothing that is encrypted is opened.
"""
