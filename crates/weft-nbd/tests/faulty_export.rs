//! A panic in the code that serves one client ends only that client's connection.

mod support;

use support::raw::{Raw, faults};
use support::{RamVolume, Served};
use weft_nbd::ServerConfig;
use weft_nbd::proto::wire::CMD_READ;

#[test]
fn a_panic_costs_one_connection() {
    let served = Served::bounded(ServerConfig::default(), || RamVolume {
        panics_at: Some(64 << 10),
        ..RamVolume::new(1 << 20)
    });
    let mut other = Raw::new(&served);
    let mut client = Raw::new(&served);
    client.send(CMD_READ, 1, 64 << 10, 4096);
    assert!(client.at_end());
    other.send(CMD_READ, 1, 0, 4096);
    assert_eq!(other.reply(), (1, 0));
    other.data(4096);
    Raw::new(&served).works();
    drop(other);
    let events = served.stop();
    assert_eq!(faults(&events), ["an internal error"], "{events:?}");
}
