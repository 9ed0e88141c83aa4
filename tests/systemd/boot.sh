echo $$ > {cgroup}/cgroup.procs
exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup --net sh -ec '
    # systemd raises limits of the kernel when it boots: not those of the machine that runs this test.
    mount --bind /proc/sys /proc/sys
    mount -o remount,ro,bind /proc/sys
    for place in /run /etc/systemd /usr/lib/systemd/system-generators; do mount -t tmpfs tmpfs $place; done
    mount --bind {units} {system}
    # Its groups come below the one of the test.
    mount --bind {cgroup} {cgroups}
    mkdir /run/test
    echo 75 > /run/test/status
    echo 3 > /run/test/clocks
    cp {units}/../f5-clock-lock /run/test
    export container=lxc
    exec {systemd} --system --unit=multi-user.target --log-target=null --show-status=no
'
