//! Arrays as disks of virtual machines: QEMU is the client, and the guest's kernel has the driver.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::Bench;
use weft_testkit::{Guest, Need, Scratch, have, wait_until};

fn socket(bench: &Bench, array: &str) -> PathBuf {
    bench.path(&format!("vms/{array}.sock"))
}

fn array(name: &str) -> Bench {
    let bench = Bench::new(name);
    let members = ["d0", "d1", "d2", "d3"];
    let create = ["create", "tank", "--code", "raid5", "--unit", "64K", "--size", "24M"];
    bench.weft(&[&create[..], &members].concat());
    bench
}

const WORDS: &str = r#"
step() { echo "--- $* ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*"; dmesg | tail -n 30; exit 1; }
same() { [ "$2" = "$3" ] || fail "$1 is $2, not $3"; }
limits() { (cd /sys/block/vda/queue && cat "$@" | tr '\n' ' '); }
"#;

const STORY: &str = r#"
modprobe ext4
step limits
same requests "$(limits minimum_io_size optimal_io_size)" "65536 196608 "
same blocks "$(limits logical_block_size physical_block_size)" "512 4096 "
same cache "$(cat /sys/block/vda/queue/write_cache)" "write back"
same name "$(cat /sys/block/vda/serial)" tank

step zeroes
dd if=/dev/urandom of=/dev/vda bs=1M count=8 2>/dev/null
/bin/blkdiscard -z -o 4096 -l 3M /dev/vda
dd if=/dev/vda bs=4096 skip=1 count=768 2>/dev/null | cmp -n 3145728 - /dev/zero
/bin/blkdiscard -o 4M -l 2M /dev/vda

step "a file system, and the daemon killed and upgraded under it"
mkfs.ext4 -qF /dev/vda
mkdir /tmp/mnt
mount /dev/vda /tmp/mnt
for turn in killed upgraded; do
    fio --name=v --filename=/tmp/mnt/fio --rw=randwrite --bsrange=4k-128k --ioengine=libaio \
        --direct=1 --iodepth=16 --size=24M --fsync=32 --verify=crc32c --do_verify=1 \
        --verify_fatal=1 --output=/tmp/fio & fio=$!
    writes() { awk '{ print $5 }' /sys/block/vda/stat; }
    before=$(writes)
    until [ $(writes) -gt $((before + 50)) ]; do
        kill -0 $fio || fail "fio was too quick: $(cat /tmp/fio)"
        sleep 0.1
    done
    echo $turn >/host/now
    until [ -e /host/done-$turn ]; do sleep 0.1; done
    wait $fio || fail "fio: $(cat /tmp/fio)"
    grep -q 'err= 0' /tmp/fio || fail "fio: $(cat /tmp/fio)"
    rm /tmp/mnt/fio
done
echo kept >/tmp/mnt/file
umount /tmp/mnt
e2fsck -fn /dev/vda
dmesg | grep -i 'I/O error' && fail "the guest saw errors"
true
"#;

#[test]
fn a_guest_notices_a_pause_when_the_daemon_is_killed_or_upgraded() {
    let tools = ["mkfs.ext4", "e2fsck", "fio", "blkdiscard"];
    let host = Scratch::new("vhost-host");
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&tools.map(Need::Tool))) else {
        return;
    };
    let mut bench = array("vhost");
    let serve = ["--vhost-user", "vms", "."];
    bench.serve(&serve);
    let guest = tools.iter().fold(guest, |guest, tool| guest.program(tool));
    let guest = guest.vhost_user_disk(&socket(&bench, "tank")).patience(Duration::from_secs(600));
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| guest.run(&format!("{WORDS}{STORY}")));
        for turn in ["killed", "upgraded"] {
            wait_until("the guest to be at work", || {
                let now = fs::read_to_string(host.join("now")).unwrap_or_default();
                running.is_finished() || now.trim() == turn
            });
            if running.is_finished() {
                break;
            }
            match turn {
                "killed" => bench.kill9(),
                _ => drop(bench.weft(&["stop"])),
            }
            std::thread::sleep(Duration::from_secs(1));
            bench.serve(&serve);
            fs::write(host.join(format!("done-{turn}")), "").expect("written");
        }
        running.join().expect("the guest")
    });
    println!("{}", outcome.success());
    assert!(bench.weft(&["scrub", "tank"]).contains("0 mismatches"));
    bench.terminate();
    assert!(!socket(&bench, "tank").exists(), "the socket is left");
}

#[test]
fn a_read_only_array_is_a_disk_that_takes_no_writes() {
    let host = Scratch::new("vhost-host-ro");
    let Some(guest) = Guest::find(host.path()) else { return };
    let mut bench = array("vhost-ro");
    bench.serve(&["--vhost-user", "vms", "--read-only", "."]);
    let guest = guest.vhost_user_disk(&socket(&bench, "tank"));
    let story = "
same 'the state' \"$(cat /sys/block/vda/ro)\" 1
dd if=/dev/vda of=/dev/null bs=64k count=16 2>/dev/null
dd if=/dev/zero of=/dev/vda bs=4096 count=1 oflag=direct 2>/dev/null && fail 'it takes writes'
true
";
    println!("{}", guest.run(&format!("{WORDS}{story}")).success());
    bench.terminate();
}

/// Sends `bytes`, and waits until the daemon has closed the connection.
fn say(path: &PathBuf, bytes: &[u8]) {
    let mut stream = UnixStream::connect(path).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    // It may hang up in the middle.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
}

#[test]
fn what_is_no_vhost_user_ends_the_connection_and_nothing_else() {
    let mut bench = array("vhost-bad");
    bench.serve(&["--vhost-user", "vms", "."]);
    let path = socket(&bench, "tank");
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    say(&path, b"");
    say(&path, b"GET / HTTP/1.1\r\n\r\n");
    say(&path, &[0xff; 4096]);
    let message = |request: u32, flags: u32, size: u32, body: &[u8]| {
        let head = [request, flags, size].map(u32::to_le_bytes).concat();
        [&head[..], body].concat()
    };
    // Requests of the protocol, in no order that makes sense, with bodies of all lengths.
    for request in 0..45 {
        for (flags, size) in [(1, 0), (1, 8), (9, 8), (1, 4096), (1, u32::MAX), (0, 8)] {
            let body = vec![0xa5; usize::try_from(size.min(256)).expect("short")];
            say(&path, &message(request, flags, size, &body));
        }
    }
    // A queue of which nothing was said.
    say(&path, &message(11, 1, 8, &[0, 0, 0, 0, 0, 0, 0, 0]));
    assert!(bench.is_running(), "{}", bench.log());
    assert!(!bench.log().contains("bug in weft"), "{}", bench.log());
    assert_eq!(bench.status("tank")["state"], "healthy");
    bench.terminate();
}

#[test]
fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
    let mut bench = array("vhost-left");
    bench.serve(&["--vhost-user", "vms", "."]);
    bench.kill9();
    assert!(socket(&bench, "tank").exists());
    bench.serve(&["--vhost-user", "vms", "."]);
    let other = array("vhost-second");
    let place = crate::common::text(&bench.path("vms"));
    let mut other = other;
    other.serve(&["--vhost-user", &place, "."]);
    assert!(other.log().contains("another process serves there"), "{}", other.log());
    other.terminate();
    assert!(socket(&bench, "tank").exists());
    bench.weft(&["stop", "tank"]);
    assert!(!socket(&bench, "tank").exists());
    bench.refused(&["serve", "--vhost-user", "d0", "."], 1);
    bench.terminate();
}

#[test]
fn guests_of_an_array_do_not_get_another_one_of_the_same_name() {
    let mut bench = array("vhost-identity");
    bench.serve(&["--vhost-user", "vms", "."]);
    assert!(socket(&bench, "tank").exists());
    bench.terminate();
    // As a guest of an earlier array leaves it.
    let note = bench.path("vms/tank.array");
    fs::write(&note, "0123456789abcdef0123456789abcdef\n").expect("written");
    bench.serve(&["--vhost-user", "vms", "."]);
    assert!(bench.log().contains("guests there have used another array"), "{}", bench.log());
    assert!(!socket(&bench, "tank").exists());
    bench.terminate();
    fs::remove_file(&note).expect("removed");
    bench.serve(&["--vhost-user", "vms", "."]);
    assert!(socket(&bench, "tank").exists(), "{}", bench.log());
    bench.terminate();
}
