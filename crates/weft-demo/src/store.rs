//! Stores files on an array, one after another, with weft's own NBD client.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::rc::Rc;

use crc_fast::{CrcAlgorithm, Digest};
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::thread;
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::ring::RingConfig;
use weft_rt::{Buf, Rt};

use crate::tree::Source;

/// Bytes of a request.
const CHUNK: usize = 1 << 20;
/// Requests in flight.
const DEPTH: usize = 8;

/// A file on the array.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The file it is a copy of.
    pub path: PathBuf,
    /// Bytes.
    pub len: u64,
    sum: u64,
}

/// The array, reached over NBD.
pub struct Store {
    rt: Rt,
    disk: Rc<dyn Disk>,
}

fn failed(error: DiskError) -> Failure {
    Failure::new(error.to_string())
}

impl Store {
    /// Connects to the export at `uri`.
    pub fn open(uri: &str) -> Result<Self, Failure> {
        let (rt, ring) = thread::start(RingConfig::default())?;
        let opener = Opener::new(&rt, ring);
        let uri = uri.to_owned();
        let disk = rt.block_on(async move { opener.open(&uri, false).await })?;
        Ok(Self { rt, disk })
    }

    /// Writes the files and flushes; `at` is called with the number of bytes written. Files that
    /// have become unreadable are skipped.
    pub fn write(
        &mut self,
        files: &[Source],
        mut at: impl FnMut(u64),
    ) -> Result<Vec<Stored>, Failure> {
        let mut tape =
            Tape { disk: self.disk.clone(), chunk: Buf::new(CHUNK), filled: 0, offset: 0 };
        let mut stored = Vec::new();
        let mut flights = FuturesUnordered::new();
        for file in files {
            let Ok(opened) = File::open(&file.path) else { continue };
            // At most the listed length: the file may be growing, and space was reserved for that
            // length.
            let mut content = opened.take(file.len);
            let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
            let mut len = 0;
            while let Ok(count @ 1..) = content.read(&mut tape.chunk[tape.filled..]) {
                digest.update(&tape.chunk[tape.filled..][..count]);
                len += count as u64;
                tape.filled += count;
                if tape.filled == CHUNK {
                    flights.push(tape.send(&self.rt));
                    at(tape.offset);
                }
                if flights.len() == DEPTH {
                    flights = self.rt.block_on(one(flights))?;
                }
            }
            stored.push(Stored { path: file.path.clone(), len, sum: digest.finalize() });
        }
        flights.push(tape.send(&self.rt));
        let disk = self.disk.clone();
        self.rt.block_on(async move {
            while let Some(result) = flights.next().await {
                result.map_err(failed)?;
            }
            disk.flush().await.map_err(failed)
        })?;
        at(tape.offset);
        Ok(stored)
    }

    /// Reads everything back; returns the files that differ.
    pub fn compare(
        &mut self,
        stored: &[Stored],
        mut at: impl FnMut(u64),
    ) -> Result<Vec<PathBuf>, Failure> {
        let total: u64 = stored.iter().map(|file| file.len).sum();
        let mut check = Check::new(stored);
        for start in (0..total).step_by(CHUNK * DEPTH) {
            let end = (start + (CHUNK * DEPTH) as u64).min(total);
            let disk = self.disk.clone();
            let batch = self.rt.block_on(async move {
                let reads = (start..end).step_by(CHUNK).map(|offset| {
                    let disk = disk.clone();
                    async move {
                        let (result, buf) = disk.read(offset, Buf::new(CHUNK), Class::User).await;
                        result.map(|()| buf).map_err(failed)
                    }
                });
                let results: Vec<_> = stream::iter(reads).buffered(DEPTH).collect().await;
                results.into_iter().collect::<Result<Vec<Buf>, Failure>>()
            })?;
            for chunk in &batch {
                check.update(chunk);
            }
            at(end);
        }
        Ok(check.finish())
    }

    /// Changes one byte of a stored file without updating its checksum.
    pub fn corrupt(&mut self, stored: &[Stored]) -> Outcome {
        let total: u64 = stored.iter().map(|file| file.len).sum();
        let offset = total / 2 / CHUNK as u64 * CHUNK as u64;
        let disk = self.disk.clone();
        self.rt.block_on(async move {
            let (result, mut buf) = disk.read(offset, Buf::new(4096), Class::User).await;
            result.map_err(failed)?;
            buf[0] ^= 1;
            disk.write(offset, buf.freeze(), WriteOpts::USER).await.map_err(failed)
        })
    }
}

type Flight = weft_rt::Task<Result<(), DiskError>>;

/// Waits for one of the writes; returns the rest.
async fn one(mut flights: FuturesUnordered<Flight>) -> Result<FuturesUnordered<Flight>, Failure> {
    if let Some(result) = flights.next().await {
        result.map_err(failed)?;
    }
    Ok(flights)
}

/// Collects bytes and sends them in chunks.
struct Tape {
    disk: Rc<dyn Disk>,
    chunk: Buf,
    filled: usize,
    offset: u64,
}

impl Tape {
    /// Starts to write the collected bytes, padded to whole blocks.
    fn send(&mut self, rt: &Rt) -> Flight {
        let mut chunk = std::mem::replace(&mut self.chunk, Buf::new(CHUNK));
        let len = self.filled.next_multiple_of(4096).max(4096);
        chunk[self.filled..len].fill(0);
        chunk.truncate(len);
        let (disk, offset) = (self.disk.clone(), self.offset);
        self.offset += self.filled as u64;
        self.filled = 0;
        rt.spawn(async move { disk.write(offset, chunk.freeze(), WriteOpts::USER).await })
    }
}

/// Maps the bytes that are read to the files.
struct Check<'a> {
    files: std::slice::Iter<'a, Stored>,
    current: Option<(&'a Stored, u64, Digest)>,
    wrong: Vec<PathBuf>,
}

impl<'a> Check<'a> {
    fn new(stored: &'a [Stored]) -> Self {
        let mut check = Self { files: stored.iter(), current: None, wrong: Vec::new() };
        check.next_file();
        check
    }

    fn next_file(&mut self) {
        let begin = |file: &'a Stored| (file, file.len, Digest::new(CrcAlgorithm::Crc64Nvme));
        self.current = self.files.next().map(begin);
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while let Some((file, left, mut digest)) = self.current.take() {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            digest.update(&bytes[..count]);
            bytes = &bytes[count..];
            let left = left - count as u64;
            if left > 0 {
                self.current = Some((file, left, digest));
                return;
            }
            if digest.finalize() != file.sum {
                self.wrong.push(file.path.clone());
            }
            self.next_file();
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// The files that were wrong; a file that was not read to its end is wrong too.
    fn finish(mut self) -> Vec<PathBuf> {
        // Empty files at the end need no bytes.
        self.update(&[]);
        let unread = self.current.take().map(|(file, ..)| file).into_iter().chain(self.files);
        self.wrong.extend(unread.filter(|file| file.len > 0).map(|file| file.path.clone()));
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn stored(contents: &[&[u8]]) -> Vec<Stored> {
        let file = |(n, bytes): (usize, &&[u8])| {
            let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
            digest.update(bytes);
            let path = Path::new(&n.to_string()).to_owned();
            Stored { path, len: bytes.len() as u64, sum: digest.finalize() }
        };
        contents.iter().enumerate().map(file).collect()
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let contents: [&[u8]; 5] = [b"", b"abc", b"", b"defgh", b""];
        let files = stored(&contents);
        let tape: Vec<u8> = contents.concat();
        for cut in 0..=tape.len() {
            let mut check = Check::new(&files);
            check.update(&tape[..cut]);
            check.update(&tape[cut..]);
            assert!(check.finish().is_empty(), "cut at {cut}");
            for wrong in 0..tape.len() {
                let mut tape = tape.clone();
                tape[wrong] ^= 0x10;
                let mut check = Check::new(&files);
                check.update(&tape[..cut]);
                check.update(&tape[cut..]);
                let name = if wrong < 3 { "1" } else { "3" };
                assert_eq!(check.finish(), [Path::new(name)], "byte {wrong}, cut at {cut}");
            }
        }
        let mut check = Check::new(&files);
        check.update(&tape[..4]);
        assert_eq!(check.finish(), [Path::new("3")], "a file that was not read is not right");
    }
}
