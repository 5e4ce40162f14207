#!/bin/sh
# First life of a node's process 1: already in its own network, mount, pid, uts and ipc namespaces,
# still on the machine's root. Makes the node's root, enters it, and hands over to init.sh.
#
# Environment: NAME ADDRESS PREFIX DISK LAYERS OVERLAID STACKS SIMULATED(folder or empty) RATE BURST(or empty)
#              HERE (this folder). Protocol: prints the pids of this process as the kernel tells them from
# the outermost namespace inwards; waits for a line (the link is there); prints "up" before sshd starts.
# Standard error is the console.
set -eu
umask 022

while read -r key pids; do
    if [ "$key" = NSpid: ]; then echo "$pids"; break; fi
done < /proc/self/status

root=$DISK/root
mount --bind "$root" "$root"
cd "$root"
for name in $OVERLAID; do
    mount -t overlay -o "lowerdir=$LAYERS/$name:/$name,upperdir=$DISK/upper/$name,workdir=$DISK/work/$name" \
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
cp "$HERE/init.sh" run/clusterctl/init

mount --bind "$STACKS" opt/clusterctl/stacks
mount -o remount,bind,ro,nosuid,nodev opt/clusterctl/stacks

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

pivot_root . mnt
cd /
umount -l /mnt
# Root of a node may do what root of a server does, but not to the machine's kernel: no modules,
# no clock, no ports, no kernel log, no reboot.
exec setpriv --bounding-set -sys_module,-sys_rawio,-sys_time,-sys_boot,-syslog \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
    /bin/sh /run/clusterctl/init
