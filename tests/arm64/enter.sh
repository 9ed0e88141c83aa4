set -e
root=$1 qemu=$2
shift 2
ip link set lo up
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf %s "$qemu" > /proc/sys/fs/binfmt_misc/register
mount -t proc proc "$root/proc"
mount --bind "$root/run/cpuinfo" "$root/proc/cpuinfo"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
exec chroot "$root" "$@"
