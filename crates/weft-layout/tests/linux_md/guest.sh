# Runs in the guest, standing in the folder of the exchange. Each line of `cases` is an array:
#   NAME MEMBERS DATA_OFFSET_KIB LOST_SLOTS mdadm's options …
# The members that the host wrote (NAME.weft) go to md, which must read `second` from them, first
# without the lost ones, and agree with every parity. Then `first` is written through md, and the
# members go back to the host (NAME.md).
#
# The guest computes slowly: there are as few processes as possible. (Its shell prefers a cmp of its
# own to /bin/cmp.)

modprobe brd rd_nr=8 rd_size=@MEMBER_KIB@

# create LOST_SLOTS: the array without those (`3,4`; `-` for none). The data are left as they are.
create() {
  devices=
  slot=0
  while [ $slot -lt "$members" ]; do
    case ",$1," in
      *",$slot,"*) devices="$devices missing" ;;
      *) devices="$devices /dev/ram$slot" ;;
    esac
    slot=$((slot + 1))
  done
  clean=--assume-clean
  case "$options" in *--level=0*) clean= ;; esac
  mdadm --create /dev/md0 --quiet --run $clean --force --homehost=any \
    --data-offset="$offset"K --raid-devices="$members" $options $devices
  read -r sectors </sys/block/md0/size
  bytes=$((sectors * 512))
}

stop() {
  mdadm --stop --quiet /dev/md0
}

# copy FROM TO: every member, between /dev/ram and the host's files.
copy() {
  slot=0
  while [ $slot -lt "$members" ]; do
    dd if="$1$slot" of="$2$slot" bs=1536k count=1 2>/dev/null
    slot=$((slot + 1))
  done
}

# Whole stripes first, then pieces that md must fold into the parity.
write_through_md() {
  dd if=first of=/dev/md0 bs=4k count=$((bytes / 4096)) conv=fsync 2>/dev/null
  for block in @REWRITTEN@; do
    dd if=second of=/dev/md0 bs=4k skip=$block seek=$block count=1 conv=fsync 2>/dev/null
  done
}

# md's own scrub: it recomputes every parity and compares every copy.
check() {
  action=/sys/block/md0/md/sync_action
  [ -e $action ] || return 0
  echo check >$action
  while read -r state <$action && [ "$state" != idle ]; do usleep 5000; done
  read -r mismatches </sys/block/md0/md/mismatch_cnt
  [ "$mismatches" = 0 ] || { echo "md finds $mismatches sectors that do not match"; return 1; }
}

while read -r name members offset lost options; do
  read -r now rest </proc/uptime
  echo "$now $name"
  copy "$name.weft/" /dev/ram
  if [ "$lost" != - ]; then
    create "$lost"
    /bin/cmp -n $bytes /dev/md0 second
    stop
  fi
  create -
  /bin/cmp -n $bytes /dev/md0 second
  check
  write_through_md
  stop
  echo $bytes >"$name.md/bytes"
  copy /dev/ram "$name.md/"
  last_members=$members last_offset=$offset last_options=$options
done <cases

# That md's check would have seen a difference: one wrong byte in the last case.
members=$last_members offset=$last_offset options=$last_options
printf x | dd of=/dev/ram0 bs=1 seek=$((offset * 1024 + 5000)) conv=notrunc 2>/dev/null
create -
if check >/dev/null; then
  echo "md's check is blind"
  exit 1
fi
stop
