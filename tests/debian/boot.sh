echo $$ > {cgroup}/cgroup.procs
exec unshare --pid --fork --kill-child --mount --cgroup --net --uts sh -ec '
    mount --bind {root} {root}
    cd {root}
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,ro,bind proc/sys
    mount --rbind /sys sys
    mount --bind {cgroup} .{cgroups}
    mount --rbind /dev dev
    # RemoveIPC=yes removes files of its user from dev/shm, where this root may lie.
    for place in run tmp dev/shm; do mount -t tmpfs tmpfs $place; done
    mkdir -p srv/checkout
    mount --bind {repository} srv/checkout
    mkdir -p jetson/root/etc/f5-appliance
    mount --bind etc/f5-appliance jetson/root/etc/f5-appliance
    ip link add lan type bridge
    ip address add 192.168.1.10/24 dev lan
    ip link set lan up
    export container=lxc
    exec chroot . /lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=no
'
