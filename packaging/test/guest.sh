#!/bin/bash
# The test of the Debian package, within a virtual machine with Debian's systemd and kernel. The
# service package-test.service runs it after each boot, and it reboots between its parts.
# `cargo xtask package --test` starts the machine, and reads the last line from its console.

set -euEo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

PART_FILE=/var/lib/package-test
part=$(cat $PART_FILE 2>/dev/null || echo install)

say() { echo "--- $part: $*"; }

fail() {
    echo "!!! $part, line $1: $2"
    systemctl --no-pager --failed
    journalctl --no-pager -b -n 60 -u 'nacre-*' -u 'mnt-*' || true
    echo "package test: FAILED in the part $part"
    systemctl poweroff
    exit 1
}
trap 'fail $LINENO "$BASH_COMMAND"' ERR

# Fails unless the two texts are equal.
equal() { test "$1" = "$2" || { echo "expected '$2', found '$1'"; return 1; }; }

next_part() {
    echo "$1" >$PART_FILE
    say "rebooting"
    systemctl reboot
    exit 0
}

install_packages() { apt-get install -q -y "$@"; }

# Waits until a command succeeds.
await() {
    for _ in $(seq 120); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.5
    done
    echo "not within 60 s: $*"
    return 1
}

TARGETS=(nacre-target@mgs nacre-target@mdt0 nacre-target@ost0 nacre-target@ost1)

part_install() {
    say "the previous version, on a Debian without Nacre"
    if command -v nacre; then return 1; fi
    install_packages /packages/previous/nacre_*.deb
    equal "$(readlink /usr/sbin/mount.lustre)" ../bin/nacre
    equal "$(stat -c %U /var/lib/nacre /var/lib/nacre/target | xargs)" "root nacre"
    zgrep -q setstripe /usr/share/man/man1/nacre-lfs-setstripe.1.gz
    bash -n /usr/share/bash-completion/completions/nacre
    systemd-analyze verify --man=no nacre-target@mgs.service nacre-up@whole.service

    say "a file system of four units, each with one target"
    as_nacre() { runuser -u nacre -- "$@"; }
    as_nacre nacre mkfs --mgs /var/lib/nacre/target/mgs
    as_nacre nacre mkfs --mdt --fsname data --mgsnode 127.0.0.1@tcp /var/lib/nacre/target/mdt0
    for i in 0 1; do
        as_nacre nacre mkfs --ost --fsname data --index $i --mgsnode 127.0.0.1@tcp /var/lib/nacre/target/ost$i
    done
    echo 'OPTIONS="--listen 127.0.0.1@tcp"' >/etc/nacre/target-mgs.env
    systemctl enable --now "${TARGETS[@]}"
    for unit in "${TARGETS[@]}"; do
        equal "$(systemctl show -P ActiveState $unit)" active
        equal "$(stat -c %U /proc/"$(systemctl show -P MainPID $unit)")" nacre
        echo "$unit: $(systemctl show -P StatusText $unit)"
        systemd-analyze security --no-pager $unit | tail -1
    done
    nacre status
    equal "$(nacre status --json | grep -c '"role": *"serve"')" 4
    journalctl --no-pager -b -u 'nacre-target@*' -o cat | grep -q '^serving data-OST0001'

    say "one line in fstab"
    mkdir /mnt/data
    echo '127.0.0.1@tcp:/data /mnt/data nacre _netdev 0 0' >>/etc/fstab
    next_part mounted
}

part_mounted() {
    say "the line in fstab has mounted the file system"
    equal "$(findmnt -n -o FSTYPE,SOURCE /mnt/data | xargs)" "fuse.nacre 127.0.0.1@tcp:/data"
    nacre --version
    nacre lfs df /mnt/data
    cp -r /usr/share/doc /mnt/data/
    nacre lfs setstripe -c 2 -S 64K /mnt/data/striped
    dd if=/dev/urandom of=/mnt/data/striped bs=1M count=8 status=none
    (cd /mnt/data && find . -type f -exec md5sum {} + | sort) >/var/lib/package-test-data.md5
    test "$(wc -l </var/lib/package-test-data.md5)" -gt 50
    echo kept >/mnt/data/kept

    say "a whole file system in one unit"
    echo 'OPTIONS="--osts 2 --fsname whole --listen 127.0.0.20@tcp"' >/etc/nacre/up-whole.env
    systemctl enable --now nacre-up@whole
    equal "$(systemctl show -P ActiveState nacre-up@whole)" active
    systemctl show -P StatusText nacre-up@whole
    echo whole >/var/lib/nacre/up/whole/mnt/file
    systemd-analyze security --no-pager nacre-up@whole | tail -1

    say "upgrade, while all of it runs"
    echo '# of the administrator' >>/etc/nacre/nacre.env
    install_packages /packages/nacre_*.deb | tee /var/lib/package-test-upgrade
    grep -q 'run the previous version.*nacre-up@whole' /var/lib/package-test-upgrade
    grep -q '# of the administrator' /etc/nacre/nacre.env
    check_data
    equal "$(cat /var/lib/nacre/up/whole/mnt/file)" whole
    next_part upgraded
}

# The line in fstab does not name the servers, so only a boot orders them.
start_all() {
    systemctl start "${TARGETS[@]}"
    systemctl start mnt-data.mount
}

check_data() { (cd /mnt/data && md5sum --quiet -c /var/lib/package-test-data.md5); }

part_upgraded() {
    say "data of the previous version"
    equal "$(nacre --version)" "nacre $(dpkg-query -W -f '${Version}' nacre | sed 's/-[^-]*$//')"
    check_data
    equal "$(cat /var/lib/nacre/up/whole/mnt/file)" whole

    say "mount and unmount by systemd"
    systemctl stop mnt-data.mount
    if findmnt /mnt/data; then return 1; fi
    mount /mnt/data
    check_data
    # The log of a mount that systemd makes is in the journal.
    umount /mnt/data
    systemctl start mnt-data.mount
    check_data
    mkdir -p /mnt/auto /mnt/unit /mnt/lustre
    echo '127.0.0.1@tcp:/data /mnt/auto nacre _netdev,noauto,x-systemd.automount,ro 0 0' >>/etc/fstab
    cat >/etc/systemd/system/mnt-unit.mount <<EOF
[Unit]
Requires=network-online.target
After=network-online.target
[Mount]
What=127.0.0.20@tcp:/whole
Where=/mnt/unit
Type=nacre
Options=_netdev
EOF
    systemctl daemon-reload
    systemctl start mnt-auto.automount mnt-unit.mount
    equal "$(cat /mnt/auto/kept)" kept
    if touch /mnt/auto/file; then return 1; fi
    equal "$(cat /mnt/unit/file)" whole
    mount -t lustre 127.0.0.1@tcp:/data /mnt/lustre
    equal "$(cat /mnt/lustre/kept)" kept
    findmnt -t fuse.nacre
    umount /mnt/lustre
    systemctl stop mnt-auto.automount mnt-unit.mount

    say "two mounts of one process"
    mkdir /mnt/first /mnt/second
    for name in first second; do
        echo "127.0.0.1@tcp:/data /mnt/$name nacre _netdev,noauto,listen=127.0.0.77@tcp 0 0" >>/etc/fstab
    done
    systemctl daemon-reload
    local before
    before=$(processes)
    systemctl start mnt-first.mount
    systemctl start mnt-second.mount
    equal $(($(processes) - before)) 1
    systemctl stop mnt-first.mount
    equal "$(cat /mnt/second/kept)" kept
    systemctl stop mnt-second.mount
    await processes_are "$before"

    say "a killed server starts again"
    local pid
    pid=$(systemctl show -P MainPID nacre-target@ost0)
    kill -9 "$pid"
    await restarted nacre-target@ost0 "$pid"
    check_data

    say "stop"
    echo "written before the stop" >/mnt/data/last
    stop_mount_beside 5
    # A program that uses the mount does not delay the stop.
    sleep infinity </var/lib/nacre/up/whole/mnt/file &
    local user=$!
    systemctl stop nacre-up@whole "${TARGETS[@]}"
    kill $user
    for unit in nacre-up@whole "${TARGETS[@]}"; do
        equal "$(systemctl show -P Result,ExecMainStatus,ActiveState $unit | xargs)" "success 0 inactive"
    done
    processes_are 0
    journalctl --no-pager -b -p warning -u 'nacre-*' -u 'mnt-*' || true
    start_all
    equal "$(cat /mnt/data/last)" "written before the stop"
    stop_mount_beside 4

    say "remove"
    apt-get remove -q -y nacre
    if command -v nacre || test -L /usr/sbin/mount.lustre; then return 1; fi
    processes_are 0
    test -f /etc/nacre/target-mgs.env
    test -d /var/lib/nacre/target/ost0

    say "installed again, the units still know their file systems"
    install_packages /packages/nacre_*.deb
    grep -q '# of the administrator' /etc/nacre/nacre.env
    start_all
    check_data
    stop_mount_beside 4

    say "purge"
    apt-get purge -q -y nacre
    if test -e /etc/nacre; then return 1; fi
    processes_are 0
    if ls /etc/systemd/system/multi-user.target.wants/nacre-*; then return 1; fi
    test -d /var/lib/nacre/target/ost0 -a -d /var/lib/nacre/up/whole
    getent passwd nacre

    say "the data after the purge, with Lustre's helper installed"
    echo 'echo Lustre' >/usr/sbin/mount.lustre
    install_packages /packages/nacre_*.deb
    equal "$(cat /usr/sbin/mount.lustre)" 'echo Lustre'
    echo 'OPTIONS="--listen 127.0.0.1@tcp"' >/etc/nacre/target-mgs.env
    start_all
    check_data
    systemctl stop mnt-data.mount
    echo 'OPTIONS="--listen 127.0.0.20@tcp"' >/etc/nacre/up-whole.env
    systemctl start nacre-up@whole
    equal "$(cat /var/lib/nacre/up/whole/mnt/file)" whole
    apt-get purge -q -y nacre
    equal "$(cat /usr/sbin/mount.lustre)" 'echo Lustre'

    say "the library"
    install_packages /packages/libnacre0_*.deb /packages/libnacre-dev_*.deb
    equal "$(/packages/version)" "$(dpkg-query -W -f '${Version}' libnacre0 | sed 's/-[^-]*$//')"
    apt-get purge -q -y libnacre0 libnacre-dev
    echo "package test: passed"
    systemctl poweroff
}

# The number of processes of nacre.
processes() { { grep -lx nacre /proc/[0-9]*/comm 2>/dev/null || true; } | wc -l; }

# Whether so many processes of nacre run.
processes_are() { test "$(processes)" = "$1"; }

# Unmounts. The kernel does not wait for the mount's process, which ends soon after: then so many
# processes of nacre remain.
stop_mount_beside() {
    systemctl stop mnt-data.mount
    await processes_are "$1"
}

# Whether a unit is active with another main process.
restarted() {
    test "$(systemctl show -P ActiveState "$1")" = active && test "$(systemctl show -P MainPID "$1")" != "$2"
}

"part_$part"
