//! The tests of the file system, a file for each thought, in one program: each of them would compile
//! the file system and its database once more.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts of a test are small")]

mod afresh;
mod at_hand;
mod attributes;
mod balance;
mod cancel;
mod common;
mod copies;
mod crashes;
mod damage;
mod disks;
mod examples;
mod failures;
mod files;
mod full_disks;
mod full_metadata;
mod given_disks;
mod keeper;
mod larger_disks;
mod lists;
mod losses;
mod metadata;
mod mount_mark;
mod random_crashes;
mod random_losses;
mod read_only;
mod reference;
mod returned;
mod scrub;
mod set;
mod set_back;
mod streams;
mod tokens;
