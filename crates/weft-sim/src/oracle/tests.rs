//! The rules of the oracle, one by one: what it accepts and what it rejects.

use super::*;

const SIZE: usize = 64;

fn oracle() -> Oracle {
    Oracle::new(7, 64 * 64, SIZE)
}

fn bytes_of(oracle: &Oracle, write: &Writing) -> Vec<u8> {
    let mut bytes = vec![0; write.cells.len() * SIZE];
    oracle.fill(write, &mut bytes);
    bytes
}

/// An acknowledged write to cell 3.
fn put(oracle: &mut Oracle) -> Vec<u8> {
    let write = oracle.begin_write(3..4, Kind::Data);
    let bytes = bytes_of(oracle, &write);
    oracle.end_write(write, true, false);
    bytes
}

fn reads(oracle: &mut Oracle, bytes: &[u8]) -> bool {
    let read = oracle.begin_read(3..4);
    oracle.end_read(read, bytes).is_ok()
}

fn flush(oracle: &mut Oracle) {
    let flush = oracle.begin_flush();
    oracle.end_flush(flush);
}

#[test]
fn only_the_newest_acknowledged_value_is_read() {
    let mut oracle = oracle();
    assert!(reads(&mut oracle, &[0; SIZE]));
    let first = put(&mut oracle);
    let second = put(&mut oracle);
    assert!(!reads(&mut oracle, &first) && !reads(&mut oracle, &[0; SIZE]));
    assert!(reads(&mut oracle, &second));
}

#[test]
fn a_write_in_flight_may_be_seen_or_not() {
    let mut oracle = oracle();
    let old = put(&mut oracle);
    let write = oracle.begin_write(3..4, Kind::Data);
    let new = bytes_of(&oracle, &write);
    assert!(reads(&mut oracle, &old) && reads(&mut oracle, &new) && reads(&mut oracle, &old));
    let read = oracle.begin_read(3..4);
    oracle.end_write(write, true, false);
    assert!(oracle.end_read(read, &old).is_ok(), "the read began before the write ended");
    assert!(!reads(&mut oracle, &old));
}

#[test]
fn overlapping_writes_have_no_order_until_one_is_seen() {
    let mut oracle = oracle();
    let (a, b) = (oracle.begin_write(3..4, Kind::Data), oracle.begin_write(3..4, Kind::Data));
    let (bytes_a, bytes_b) = (bytes_of(&oracle, &a), bytes_of(&oracle, &b));
    oracle.end_write(b, true, false);
    oracle.end_write(a, true, false);
    let mut other = oracle.clone();
    assert!(reads(&mut oracle, &bytes_a) && !reads(&mut oracle, &bytes_b));
    assert!(reads(&mut other, &bytes_b) && !reads(&mut other, &bytes_a));
    // The value that was not read may still return after a power cut, until a flush.
    let mut flushed = oracle.clone();
    oracle.power_cut();
    assert!(reads(&mut oracle, &bytes_b) && !reads(&mut oracle, &bytes_a));
    flush(&mut flushed);
    flushed.power_cut();
    assert!(!reads(&mut flushed, &bytes_b) && reads(&mut flushed, &bytes_a));
}

#[test]
fn a_flush_covers_what_was_acknowledged_before_it_began() {
    let mut oracle = oracle();
    let old = put(&mut oracle);
    let early = oracle.begin_flush();
    let new = put(&mut oracle);
    oracle.end_flush(early);
    let mut cut = oracle.clone();
    cut.power_cut();
    assert!(reads(&mut cut, &old), "the flush had begun before the write");
    assert!(!reads(&mut cut, &new), "what was read once must stay");
    flush(&mut oracle);
    oracle.power_cut();
    assert!(!reads(&mut oracle, &old) && reads(&mut oracle, &new));
    assert_eq!(oracle.open_cells().count(), 0);
}

#[test]
fn a_write_with_fua_needs_no_flush() {
    let mut oracle = oracle();
    let old = put(&mut oracle);
    let write = oracle.begin_write(3..4, Kind::Zero);
    oracle.end_write(write, true, true);
    oracle.power_cut();
    assert!(!reads(&mut oracle, &old) && reads(&mut oracle, &[0; SIZE]));
}

#[test]
fn a_failed_write_supersedes_nothing() {
    let mut oracle = oracle();
    let old = put(&mut oracle);
    let write = oracle.begin_write(3..4, Kind::Data);
    let failed = bytes_of(&oracle, &write);
    oracle.end_write(write, false, false);
    let mut other = oracle.clone();
    assert!(reads(&mut oracle, &old) && !reads(&mut oracle, &failed));
    assert!(reads(&mut other, &failed) && !reads(&mut other, &old));
}

#[test]
fn after_a_kill_a_power_cut_may_still_change_what_was_read() {
    let mut oracle = oracle();
    let old = put(&mut oracle);
    flush(&mut oracle);
    let write = oracle.begin_write(3..4, Kind::Data);
    let new = bytes_of(&oracle, &write);
    oracle.program_killed();
    assert!(reads(&mut oracle, &new) && !reads(&mut oracle, &old));
    let mut flushed = oracle.clone();
    oracle.power_cut();
    assert!(reads(&mut oracle, &old));
    flush(&mut flushed);
    flushed.power_cut();
    assert!(!reads(&mut flushed, &old) && reads(&mut flushed, &new));
}

#[test]
fn an_excused_cell_may_hold_anything_but_must_keep_it() {
    let mut oracle = oracle();
    put(&mut oracle);
    oracle.power_cut();
    assert!(oracle.excuse(3, oracle.now()) && oracle.may_hold_anything(3));
    oracle.consistent_again();
    assert!(reads(&mut oracle, &[0xee; SIZE]) && !reads(&mut oracle, &[0xdd; SIZE]));
    let new = put(&mut oracle);
    assert!(reads(&mut oracle, &new) && !reads(&mut oracle, &[0xee; SIZE]));
}

#[test]
fn large_cells_may_be_torn_at_sectors_only_by_a_crash() {
    let mut oracle = Oracle::new(1, 1 << 20, 4096);
    let first = oracle.begin_write(0..1, Kind::Data);
    let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
    oracle.fill(&first, &mut old);
    oracle.end_write(first, true, true);
    let second = oracle.begin_write(0..1, Kind::Data);
    oracle.fill(&second, &mut new);
    let torn: Vec<u8> = [&new[..1024], &old[1024..]].concat();
    let badly: Vec<u8> = [&new[..1000], &old[1000..]].concat();
    oracle.power_cut();
    let mut other = oracle.clone();
    let read = other.begin_read(0..1);
    assert!(other.end_read(read, &badly).is_err());
    for (bytes, fine) in [(&torn, true), (&old, false), (&torn, true)] {
        let read = oracle.begin_read(0..1);
        assert_eq!(oracle.end_read(read, bytes).is_ok(), fine);
    }
}

#[test]
fn a_misplaced_cell_is_named() {
    let mut oracle = oracle();
    let write = oracle.begin_write(5..6, Kind::Data);
    let bytes = bytes_of(&oracle, &write);
    let read = oracle.begin_read(3..4);
    let mismatch = oracle.end_read(read, &bytes).expect_err("cell 5 is not cell 3");
    assert!(mismatch.text.contains("holds cell 5 as of version 1"), "{}", mismatch.text);
}

#[test]
fn a_read_that_began_before_a_durable_write_ended_may_see_what_was_before() {
    let mut oracle = oracle();
    let read = oracle.begin_read(3..4);
    let write = oracle.begin_write(3..4, Kind::Data);
    oracle.end_write(write, true, true);
    flush(&mut oracle);
    assert!(oracle.end_read(read, &[0; SIZE]).is_ok());
    assert!(!reads(&mut oracle, &[0; SIZE]));
    let mut cut = oracle.clone();
    cut.power_cut();
    assert!(!reads(&mut cut, &[0; SIZE]), "but not through a crash");
}

#[test]
fn an_excused_cell_may_change_until_the_volume_is_consistent() {
    let mut oracle = oracle();
    put(&mut oracle);
    oracle.power_cut();
    assert!(oracle.excuse(3, oracle.now()));
    assert!(reads(&mut oracle, &[0xee; SIZE]) && reads(&mut oracle, &[0xdd; SIZE]));
    oracle.consistent_again();
    assert!(reads(&mut oracle, &[0xee; SIZE]) && !reads(&mut oracle, &[0xdd; SIZE]));
}

#[test]
fn a_cell_beyond_the_end_that_was_excused_is_when_the_volume_is_larger() {
    let mut oracle = oracle();
    let (count, size) = (oracle.len(), SIZE as u64);
    let end = count as u64 * size;
    assert!(oracle.excuse(count + 1, oracle.now()));
    assert_eq!((oracle.len(), oracle.open_cells().count()), (count, 0));
    assert_eq!(oracle.cells_of(&(end - size..end + size)), count - 1..count);
    assert_eq!(oracle.cells_at(&(end - size..end + size)), count - 1..count + 1);
    assert_eq!(oracle.grow(end + 3 * size), count..count + 3);
    let reads = |oracle: &mut Oracle, cell: usize, bytes: &[u8]| {
        let read = oracle.begin_read(cell..cell + 1);
        oracle.end_read(read, bytes).is_ok()
    };
    assert!(reads(&mut oracle, count + 1, &[0xee; SIZE]));
    for zeros in [count, count + 2] {
        assert!(!reads(&mut oracle, zeros, &[0xee; SIZE]) && reads(&mut oracle, zeros, &[0; SIZE]));
    }
}

#[test]
fn what_was_written_before_a_crash_may_be_excused_and_what_was_written_after_it_not() {
    let mut oracle = oracle();
    put(&mut oracle);
    flush(&mut oracle);
    oracle.power_cut();
    let first = oracle.now();
    put(&mut oracle);
    flush(&mut oracle);
    assert!(!oracle.clone().excuse(3, first));
    oracle.power_cut();
    assert!(oracle.excuse(3, oracle.now()));
}

#[test]
fn a_crash_cuts_what_is_not_durable_and_nothing_else() {
    let mut oracle = oracle();
    let cut = |oracle: &Oracle| {
        let mut crashed = oracle.clone();
        crashed.power_cut();
        crashed.cuts().iter().map(|cut| (cut.cell, cut.began)).collect::<Vec<_>>()
    };
    let _ = put(&mut oracle);
    let first = oracle.begin_write(3..4, Kind::Data);
    let began = oracle.now();
    assert_eq!(cut(&oracle).len(), 1);
    let second = oracle.begin_write(3..4, Kind::Data);
    oracle.end_write(first, true, false);
    oracle.end_write(second, true, false);
    assert!(cut(&oracle)[0].1 <= began);
    flush(&mut oracle);
    assert!(
        oracle.open_cells().count() == 1 && cut(&oracle).is_empty(),
        "one of both, permanently"
    );
    let _unfinished = oracle.begin_write(3..4, Kind::Data);
    assert_eq!(cut(&oracle), [(3, oracle.now())]);
}

#[test]
fn a_mixture_of_old_and_new_may_become_old_again_until_a_flush() {
    let mut oracle = Oracle::new(7, 64 * 1024, 1024);
    let write = oracle.begin_write(3..4, Kind::Data);
    let mut torn = vec![0; 1024];
    oracle.fill(&write, &mut torn);
    torn[512..].fill(0);
    oracle.end_write(write, false, false);
    assert!(reads(&mut oracle, &torn) && !reads(&mut oracle, &[0; 1024]), "once read it stays");
    let mut flushed = oracle.clone();
    oracle.power_cut();
    assert!(reads(&mut oracle, &[0; 1024]));
    flush(&mut flushed);
    flushed.power_cut();
    assert!(!reads(&mut flushed, &[0; 1024]));
}

#[test]
fn a_read_in_progress_may_return_what_a_lost_copy_held_and_no_later_one() {
    for is_lost in [true, false] {
        let mut oracle = oracle();
        let (old, new) = (put(&mut oracle), put(&mut oracle));
        oracle.power_cut();
        let long = oracle.begin_read(3..4);
        if is_lost {
            oracle.doubt(3);
        }
        assert!(reads(&mut oracle, &new));
        assert_eq!(oracle.end_read(long, &old).is_ok(), is_lost);
        assert!(!reads(&mut oracle, &old) && reads(&mut oracle, &new));
        oracle.power_cut();
        assert!(!reads(&mut oracle, &old), "it was not read last");
    }
}
