//! Operations of one program that needs nobody else, on any file system.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const FILE_BYTES: usize = 1 << 20;

/// What is done, how often, and how.
type Operation = (&'static str, u32, fn(&Path, u32));

pub const OPERATIONS: [Operation; 7] = [
    ("stat", 20_000, |at, times| {
        for _ in 0..times {
            fs::metadata(at.join("file")).expect("there");
        }
    }),
    ("open and close", 4000, |at, times| {
        (0..times).for_each(|_| drop(File::open(at.join("file")).expect("there")));
    }),
    ("read 4 KiB of a cached file", 20_000, |at, times| {
        let (file, mut bytes) = (File::open(at.join("file")).expect("there"), [0; 4096]);
        for n in 0..times {
            let place = u64::from(n % (FILE_BYTES as u32 / 4096)) * 4096;
            file.read_exact_at(&mut bytes, place).expect("read");
        }
    }),
    ("write 4 KiB to a cached file", 4000, |at, times| {
        let file = File::options().write(true).open(at.join("file")).expect("there");
        for n in 0..times {
            let place = u64::from(n % (FILE_BYTES as u32 / 4096)) * 4096;
            file.write_all_at(&[1; 4096], place).expect("written");
        }
    }),
    ("write 4 KiB, fdatasync", 200, |at, times| {
        let file = File::options().write(true).open(at.join("file")).expect("there");
        for n in 0..times {
            let place = u64::from(n % (FILE_BYTES as u32 / 4096)) * 4096;
            file.write_all_at(&[2; 4096], place).and_then(|()| file.sync_data()).expect("synced");
        }
    }),
    ("create and delete", 1000, |at, times| {
        for _ in 0..times {
            let file = at.join("other");
            File::create_new(&file).and_then(|_| fs::remove_file(file)).expect("made and removed");
        }
    }),
    ("rename", 1000, |at, times| {
        for n in 0..times / 2 * 2 {
            let names = [at.join("name"), at.join("new name")];
            let n = n as usize % 2;
            fs::rename(&names[n], &names[1 - n]).expect("renamed");
        }
    }),
];

/// Makes what the operations use, in a folder.
pub fn prepare(at: &Path) {
    fs::write(at.join("file"), vec![7; FILE_BYTES]).expect("written");
    fs::write(at.join("name"), "name").expect("written");
    File::open(at.join("file")).and_then(|file| file.sync_all()).expect("synced");
}
