//! The input of a trace: a file or any reader, decompressed while it is read.
//!
//! Compression is recognised by its magic number, not by the file's name. Files made of several
//! members, streams or frames (`cat a.gz b.gz`) are read to their end. A
//! window larger than [`WINDOW_BYTES_MAX`] is refused, so that no file can ask for all of memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window of past bytes that a compressed file may refer to.
pub const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Bytes read from the file at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// How much of a file has been read, in bytes as they lie on disk; clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Progress(Rc<Cell<(u64, u64)>>);

impl Progress {
    /// Bytes read so far.
    pub fn done_bytes(&self) -> u64 {
        self.0.get().0
    }

    /// Bytes of the whole file; 0 if that is not known.
    pub fn total_bytes(&self) -> u64 {
        self.0.get().1
    }
}

struct Counted<R> {
    source: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buf)?;
        let (done, total) = self.progress.0.get();
        self.progress.0.set((done + count as u64, total));
        Ok(count)
    }
}

/// The uncompressed bytes of a file.
pub(crate) fn open(path: &Path) -> io::Result<(Box<dyn BufRead>, Progress)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let total = if metadata.is_file() { metadata.len() } else { 0 };
    wrap(file, total)
}

/// The uncompressed bytes of `source`, whose length is `total` (0: not known).
pub(crate) fn wrap(
    source: impl Read + 'static,
    total: u64,
) -> io::Result<(Box<dyn BufRead>, Progress)> {
    let progress = Progress(Rc::new(Cell::new((0, total))));
    let counted = Counted { source, progress: progress.clone() };
    let mut plain = BufReader::with_capacity(CHUNK_BYTES, counted);
    let head = fill(&mut plain)?;
    let bytes: Box<dyn BufRead> = match head {
        [0x1f, 0x8b, ..] => buffered(flate2::bufread::MultiGzDecoder::new(plain)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let limit_kib = u32::try_from(WINDOW_BYTES_MAX >> 10).unwrap_or(u32::MAX);
            buffered(lzma_rust2::XzReader::new_mem_limit(plain, true, limit_kib))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            buffered(Zstd::new(plain))
        }
        _ => Box::new(plain),
    };
    Ok((bytes, progress))
}

fn buffered(decoder: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(CHUNK_BYTES, decoder))
}

/// The buffered bytes, after filling an empty buffer. Interruptions are not errors.
pub(crate) fn fill<R: BufRead + ?Sized>(source: &mut R) -> io::Result<&[u8]> {
    loop {
        match source.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Filled: this call reads nothing.
    source.fill_buf()
}

/// A sequence of Zstandard frames; checksums are verified where present.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

/// Bytes decoded at a time.
const ZSTD_STEP_BYTES: usize = 128 << 10;

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Self { source, decoder, in_frame: false }
    }

    /// Starts the next frame; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if fill(&mut self.source)?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped =
                        io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (said, found) =
            (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match said {
            Some(said) if found.is_some_and(|found| found != said) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "zstd: the checksum does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBytes(ZSTD_STEP_BYTES);
                let decoded = self.decoder.decode_blocks(&mut self.source, step);
                decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            let count = self.decoder.read(buf)?;
            if count > 0 {
                return Ok(count);
            }
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                self.end_frame()?;
            }
        }
    }
}
