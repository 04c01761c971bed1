//! The I/O of an array's disks, as a table.
//!
//! A single report shows totals since each disk was opened. Repeated reports show the rates since
//! the last one, as iostat and `zpool iostat` do; errors are always totals, so that they do not
//! scroll away.

use std::fmt::Write as _;
use std::time::Duration;

use weft_cli::size;
use weft_disk::IoCounts;

use crate::control::protocol::DiskStatus;

/// The columns of numbers.
const HEADS: [&str; 8] =
    ["reads", "read", "writes", "written", "flushes", "in flight", "errors", "time-outs"];

/// The table. With `before`, the counts of a time ago, it shows rates instead of totals.
pub fn table(disks: &[DiskStatus], before: Option<(&[DiskStatus], Duration)>) -> String {
    let mut rows = vec![("disk".to_owned(), HEADS.map(str::to_owned))];
    for disk in disks {
        let Some(now) = &disk.io else { continue };
        let then = before.and_then(|(disks, since)| {
            Some((disks.iter().find(|other| other.disk == disk.disk)?.io?, since))
        });
        rows.push((disk.disk.clone(), cells(now, then)));
    }
    let width = |row: fn(&(String, [String; 8])) -> usize| rows.iter().map(row).max().unwrap_or(0);
    let name = width(|row| row.0.chars().count());
    let mut text = String::new();
    for (disk, cells) in &rows {
        let _ = write!(text, "  {disk:<name$}");
        for (column, cell) in cells.iter().enumerate() {
            let width = rows.iter().map(|row| row.1[column].chars().count()).max().unwrap_or(0);
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

fn cells(now: &IoCounts, then: Option<(IoCounts, Duration)>) -> [String; 8] {
    let count = |of: fn(&IoCounts) -> u64| match then {
        Some((then, since)) => format!("{}/s", rate(of(now), of(&then), since)),
        None => of(now).to_string(),
    };
    let bytes = |of: fn(&IoCounts) -> u64| match then {
        Some((then, since)) => size::show_rate(rate(of(now), of(&then), since)),
        None => size::show(of(now)),
    };
    [
        count(|io| io.reads),
        bytes(|io| io.read_bytes),
        count(|io| io.writes + io.zeroes),
        bytes(|io| io.written_bytes + io.zeroed_bytes),
        count(|io| io.flushes),
        now.in_flight.to_string(),
        (now.read_errors + now.write_errors + now.flush_errors).to_string(),
        now.timeouts.to_string(),
    ]
}

/// Per second. A disk that was opened again has counted from 0 again.
fn rate(now: u64, then: u64, since: Duration) -> u64 {
    let done = now.checked_sub(then).unwrap_or(now);
    let per_s = u128::from(done) * 1000 / since.as_millis().max(1);
    u64::try_from(per_s).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::DiskRole;
    use crate::device::Device;

    fn disk(name: &str, io: IoCounts) -> DiskStatus {
        let (disk, role, slot) = (name.to_owned(), DiskRole::Member, Some(weft_code::SlotNo(0)));
        DiskStatus { disk, role, slot, hardware: Device::unseen(name), io: Some(io) }
    }

    #[test]
    fn totals_are_shown_once_and_rates_between_looks() {
        let then =
            IoCounts { reads: 10, read_bytes: 1 << 20, write_errors: 1, ..Default::default() };
        let now = IoCounts {
            reads: 110,
            read_bytes: 5 << 20,
            read_errors: 1,
            in_flight: 3,
            timeouts: 2,
            ..then
        };
        let shown = table(&[disk("/dev/sda", now)], None);
        assert_eq!(
            shown,
            "  disk      reads   read  writes  written  flushes  in flight  errors  time-outs\n  \
             /dev/sda    110  5 MiB       0      0 B        0          3       2          2\n"
        );
        let before = [disk("/dev/sda", then)];
        let shown = table(&[disk("/dev/sda", now)], Some((&before, Duration::from_secs(2))));
        assert!(shown.contains("50/s  2 MiB/s"), "{shown}");
        // Opened again: it counts from 0 again.
        let before = [disk("/dev/sda", now)];
        let shown = table(&[disk("/dev/sda", then)], Some((&before, Duration::from_secs(1))));
        assert!(shown.contains("10/s  1 MiB/s"), "{shown}");
    }

    #[test]
    fn a_disk_that_was_not_opened_has_no_line() {
        let unseen = DiskStatus { io: None, ..disk("/dev/sdb", IoCounts::default()) };
        assert_eq!(table(&[unseen], None).lines().count(), 1);
    }
}
