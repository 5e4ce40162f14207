#!/bin/sh
# Process 1 of a node, as long as it lives. sshd is started once and never again: a node whose sshd died
# stays a node that does not answer, until somebody starts it anew.
echo up
exec > /dev/null < /dev/null
/usr/sbin/sshd -D -e &
# `wait` collects every child, orphans included, as long as one of our own lives. sleep always does.
while :; do
    sleep infinity &
    wait
done
