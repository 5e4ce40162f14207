# make demo   the main job end to end on this machine: up, check-amx, train, down
# make demo-ec2   the same on a simulated EC2, with the account looked through at the end
# make test   every test but the slow ones
# Both install what they need first, Debian packages included, and are safe to run again.

SHELL := /bin/bash
# The distribution's own, the one that the nodes have and that python3-venv belongs to.
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# What makes nodes of this machine; the nodes share its installed software, tcmalloc included. nftables is
# for the tests' simulated EC2.
PACKAGES := python3-venv openssh-server openssh-client sudo iproute2 util-linux nftables

.PHONY: help packages setup demo demo-ec2 test test-slow check bench clean
help:
	@sed -n 's/^# //p' $(MAKEFILE_LIST) | head -4

setup: packages $(VENV)/.installed

# openssh-server would start a server on port 22 of this machine, which nobody asked for: the nodes start
# their own. policy-rc.d keeps it from starting now, `disable` after a reboot.
packages:
	@missing=(); \
	tcmalloc=libtcmalloc-minimal4; \
	apt-cache show libtcmalloc-minimal4t64 >/dev/null 2>&1 && tcmalloc=libtcmalloc-minimal4t64; \
	for name in $(PACKAGES) $$tcmalloc; do \
	    dpkg-query -W -f='$${Status}' $$name 2>/dev/null | grep -q ' installed$$' || missing+=($$name); \
	done; \
	[ $${#missing[@]} = 0 ] && exit 0; \
	echo "installing $${missing[*]}"; \
	ours=; \
	if [[ " $${missing[*]} " == *" openssh-server "* && ! -e /usr/sbin/policy-rc.d ]]; then \
	    ours=yes; printf '#!/bin/sh\nexit 101\n' | $(SUDO) install -m 755 /dev/stdin /usr/sbin/policy-rc.d; \
	fi; \
	$(SUDO) apt-get -q update && \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$${missing[@]}"; \
	code=$$?; \
	if [ -n "$$ours" ]; then \
	    $(SUDO) rm -f /usr/sbin/policy-rc.d; \
	    [ ! -d /run/systemd/system ] || $(SUDO) systemctl disable -q ssh.service ssh.socket || true; \
	fi; \
	exit $$code

$(VENV)/.installed: pyproject.toml
	[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: setup
	@tests/demo.sh

demo-ec2: setup
	@tests/demo_ec2.sh

test: setup
	$(BIN)/python -m pytest -q -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: setup
	$(BIN)/pip install -q --disable-pip-version-check -e '.[bench]'
	$(BIN)/python tests/bench_control.py --laps 3
	@# pyinfra wants an older paramiko than we do
	[ -x $(VENV)/pyinfra/bin/pyinfra ] || $(PYTHON) -m venv $(VENV)/pyinfra
	$(VENV)/pyinfra/bin/pip install -q --disable-pip-version-check 'pyinfra>=3.5'
	$(BIN)/python -m tests.bench_playbook --laps 3
	$(BIN)/python -m tests.bench_amx --laps 3
	$(BIN)/python -m tests.bench_launch --laps 3
	$(BIN)/python -m tests.bench_speed --laps 3
	$(BIN)/python -m tests.bench_links --laps 3
	$(BIN)/python -m tests.bench_ec2 --laps 3

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
