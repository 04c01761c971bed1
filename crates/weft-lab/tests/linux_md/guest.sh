# Runs in the guest. Each line of `cases` is an array: SIZE_KIB MEMBERS SPARE mdadm's options …
# It loses its first member and gets the spare. What the kernel counted of each disk from then on is printed
# between `case` and `end`: /proc/diskstats before the rebuild, and after it. The rebuild is held back in
# between, so that what MD reads of a new disk is not among it.

echo 0 >/proc/sys/dev/raid/speed_limit_min
echo 100000000 >/proc/sys/dev/raid/speed_limit_max
# No request larger than the plug's.
for disk in /sys/block/vd*; do echo 128 >$disk/queue/max_sectors_kb; done

action=/sys/block/md0/md/sync_action
wait_until_idle() {
  while read -r state <$action && [ "$state" != idle ]; do usleep 20000; done
}

# Until no superblock is under way any more.
wait_until_still() {
  before=
  while now=$(grep 'vd[a-z]' /proc/diskstats) && [ "$now" != "$before" ]; do
    before=$now
    usleep 500000
  done
}

while read -r size members spare options; do
  devices=
  for letter in a b c d e f; do
    [ "$letter" = "$members" ] && break
    devices="$devices /dev/vd$letter"
  done
  mdadm --create /dev/md0 --quiet --run --assume-clean --force --homehost=any --bitmap=none \
    --data-offset=1024K --size="$size"K $options $devices
  mdadm --fail --quiet /dev/md0 /dev/vda
  mdadm --remove --quiet /dev/md0 /dev/vda
  echo frozen >$action
  mdadm --add --quiet /dev/md0 "/dev/vd$spare"
  wait_until_still
  echo "case $options"
  grep 'vd[a-z]' /proc/diskstats
  echo recover >$action
  wait_until_idle
  while read -r degraded </sys/block/md0/md/degraded && [ "$degraded" != 0 ]; do usleep 20000; done
  wait_until_still
  echo after
  grep 'vd[a-z]' /proc/diskstats
  echo end
  mdadm --stop --quiet /dev/md0
  mdadm --zero-superblock --quiet $devices "/dev/vd$spare"
done <cases
