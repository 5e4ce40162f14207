#!/bin/sh
# First life of a node's process 1: already in its own network, mount, pid, uts and ipc namespaces,
# still on the machine's root. Makes the node's root, enters it, and hands over to init.sh.
#
# Environment: NAME ADDRESS PREFIX GATEWAY(or empty) DISK LAYERS(one or more, the topmost first) OVERLAID
#              STACKS(or empty) SIMULATED(folder or empty) RATE BURST(or empty) INIT(a program) DROPPED
# Protocol: prints the pids of this process as the kernel tells them from the outermost namespace inwards;
# waits for a line (the link is there); INIT prints "up" before sshd starts. Standard error is the console.
set -eu
umask 022

while read -r key pids; do
    if [ "$key" = NSpid: ]; then echo "$pids"; break; fi
done < /proc/self/status

root=$DISK/root
mount --bind "$root" "$root"
cd "$root"
for name in $OVERLAID; do
    lower=
    for layer in $LAYERS; do lower=$lower$layer/$name:; done
    mount -t overlay -o "lowerdir=$lower/$name,upperdir=$DISK/upper/$name,workdir=$DISK/work/$name" \
        clusterctl "$name"
done

mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
# The kernel is the machine's: its settings are for reading, except the network's, which are the node's own.
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
[ ! -e proc/sysrq-trigger ] || { mount --bind proc/sysrq-trigger proc/sysrq-trigger; mount -o remount,bind,ro proc/sysrq-trigger; }

mount -t tmpfs -o mode=755,size=1m,nosuid dev dev
mkdir dev/pts dev/shm
for name in null zero full random urandom tty; do
    : > "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5,nosuid,noexec devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr

mount -t tmpfs -o mode=755,nosuid,nodev run run
mkdir run/sshd run/clusterctl run/user
mkdir -m 1777 run/lock
cp "$INIT" run/clusterctl/init
chmod 755 run/clusterctl/init

if [ -n "$STACKS" ]; then
    mount --bind "$STACKS" opt/clusterctl/stacks
    mount -o remount,bind,ro,nosuid,nodev opt/clusterctl/stacks
fi

if [ -n "$SIMULATED" ]; then
    for name in proc/cpuinfo sys/devices/system/cpu sys/devices/system/node; do
        [ -e "$name" ] || continue
        mount --bind "$SIMULATED/$name" "$name"
        mount -o remount,bind,ro "$name"
    done
    cp "$SIMULATED/marker" run/clusterctl/simulated-cpu
fi

hostname "$NAME"
read -r _
ip link set lo up
ip address add "$ADDRESS/$PREFIX" brd + dev eth0
[ -z "$RATE" ] || tc qdisc replace dev eth0 root tbf rate "$RATE" burst "$BURST" latency 25ms
ip link set eth0 up
[ -z "$GATEWAY" ] || ip route add default via "$GATEWAY"

pivot_root . mnt
cd /
umount -l /mnt
exec setpriv --bounding-set "$DROPPED" \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
    /run/clusterctl/init
