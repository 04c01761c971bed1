# Runs in the guest, standing in the folder of the exchange. Each line of `cases` is an array:
#   NAME MEMBERS ADD SIZE_KIB mdadm's options … -- its options for the reshape …
# It is created, filled with the beginning of `pattern`, and reshaped by mdadm. Its members go back to
# the host twice: reshaped (NAME.moved), and with the new space filled, too (NAME.full).

modprobe brd rd_nr=8 rd_size=@MEMBER_KIB@
echo 100000000 >/proc/sys/dev/raid/speed_limit_min
echo 100000000 >/proc/sys/dev/raid/speed_limit_max

# names FIRST COUNT: so many RAM disks.
names() {
  disk=$1
  while [ $disk -lt $(($1 + $2)) ]; do
    echo /dev/ram$disk
    disk=$((disk + 1))
  done
}

# copy TO: every member.
copy() {
  disk=0
  while [ $disk -lt $((members + add)) ]; do
    dd if=/dev/ram$disk of="$1/$disk" bs=1M 2>/dev/null
    disk=$((disk + 1))
  done
}

size() {
  read -r sectors </sys/block/md0/size
  echo $((sectors / 8))
}

while read -r name members add kib options; do
  read -r now rest </proc/uptime
  echo "$now $name"
  for disk in $(names 0 $((members + add))); do
    dd if=/dev/zero of=$disk bs=1M count=$((@MEMBER_KIB@ / 1024)) 2>/dev/null
  done
  mdadm --create /dev/md0 --quiet --run --assume-clean --force --homehost=any --bitmap=none \
    --data-offset=2048K --size="$kib"K --raid-devices="$members" ${options% -- *} $(names 0 "$members")
  blocks=$(size)
  dd if=pattern of=/dev/md0 bs=4k count="$blocks" conv=fsync 2>/dev/null
  [ "$add" = 0 ] || mdadm --add --quiet /dev/md0 $(names "$members" "$add")
  mdadm --grow --quiet /dev/md0 ${options#*-- }
  md=/sys/block/md0/md
  while read -r state <$md/sync_action && read -r at <$md/reshape_position &&
    [ "$state $at" != "idle none" ]; do usleep 10000; done
  sync
  copy "$name.moved"
  dd if=pattern of=/dev/md0 bs=4k skip="$blocks" seek="$blocks" count=$(($(size) - blocks)) \
    conv=fsync 2>/dev/null
  mdadm --stop --quiet /dev/md0
  copy "$name.full"
done <cases
