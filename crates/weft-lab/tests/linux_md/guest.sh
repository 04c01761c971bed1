# Runs in the guest. Each line of `cases` is an array: SIZE_KIB MEMBERS SPARE mdadm's options …
# It loses its first member and gets the spare. What the kernel counted of each disk from then on is printed
# between `case` and `end`: /proc/diskstats before the rebuild, and after it. The rebuild is held back in
# between, so that what MD reads of a new disk is not among it.

echo 0 >/proc/sys/dev/raid/speed_limit_min
echo 100000000 >/proc/sys/dev/raid/speed_limit_max

action=/sys/block/md0/md/sync_action
wait_until_idle() {
  while read -r state <$action && [ "$state" != idle ]; do usleep 20000; done
}

while read -r size members spare options; do
  devices=
  for letter in a b c d e f; do
    [ "$letter" = "$members" ] && break
    devices="$devices /dev/ubd$letter"
  done
  mdadm --create /dev/md0 --quiet --run --assume-clean --force --homehost=any --bitmap=none \
    --data-offset=1024K --size="$size"K $options $devices
  mdadm --fail --quiet /dev/md0 /dev/ubda
  mdadm --remove --quiet /dev/md0 /dev/ubda
  echo frozen >$action
  mdadm --add --quiet /dev/md0 "/dev/ubd$spare"
  sync
  echo "case $options"
  grep ubd /proc/diskstats
  echo recover >$action
  wait_until_idle
  while read -r degraded </sys/block/md0/md/degraded && [ "$degraded" != 0 ]; do usleep 20000; done
  echo after
  grep ubd /proc/diskstats
  echo end
  mdadm --stop --quiet /dev/md0
  mdadm --zero-superblock --quiet $devices "/dev/ubd$spare"
done <cases
