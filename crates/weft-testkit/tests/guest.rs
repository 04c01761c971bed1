//! The guest provides what its tests rely on: files, disks and a status go in and out, and a guest
//! that dies or hangs is reported as a failure that shows how far it came.

use std::fs;
use std::time::Duration;

use weft_testkit::{Guest, Scratch, pattern};

#[test]
fn a_script_exchanges_files_and_disks_and_gives_its_status() {
    let host = Scratch::new("guest-host");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    fs::write(host.join("in"), "warp").expect("write");
    let data = pattern::bytes(3, 1 << 20);
    fs::write(host.join("first"), &data).expect("write");
    let second = host.file("second", 1 << 20);
    let disks = [host.join("first"), second.clone()].map(|disk| disk.display().to_string());
    let outcome = guest.disk(&disks[0]).disk(&disks[1]).run(
        "cat in
         cat in >out
         test -e /sys/module/raid456
         dd if=/dev/vda of=/dev/vdb bs=64k 2>/dev/null
         exit 7",
    );
    assert_eq!((outcome.status, outcome.output.as_str()), (Some(7), "warp"), "{outcome:?}");
    assert_eq!(fs::read_to_string(host.join("out")).expect("read"), "warp");
    assert!(fs::read(second).expect("read") == data, "the second disk is not the first");
}

#[test]
fn a_kernel_that_dies_is_a_failure_that_shows_how_far_it_came() {
    let host = Scratch::new("guest-dies");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    let outcome = guest.run("echo weaving; echo c >/proc/sysrq-trigger; sleep 1000000");
    assert_eq!(outcome.status, None, "{outcome:?}");
    let failed = std::panic::catch_unwind(|| outcome.success()).expect_err("it is no success");
    let message = failed.downcast_ref::<String>().expect("a message");
    assert!(message.contains("weaving") && message.contains("Kernel panic"), "{message}");
}

/// No guest boots within a second.
#[test]
fn a_guest_out_of_patience_is_ended() {
    let host = Scratch::new("guest-hangs");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    let outcome = guest.patience(Duration::from_secs(1)).run("sleep 1000000");
    assert_eq!(outcome.status, None, "{outcome:?}");
}
