//! Streams of bytes between nodes and their keeper.

use std::io;
use std::rc::Rc;

use weft_disk::IoFuture;
use weft_wire::Frames;

/// A stream of bytes between a node and a keeper. Boxed futures, as networks of all kinds stand
/// side by side.
pub trait Stream {
    /// Waits for bytes and takes them; none at the end of the stream.
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>>;

    /// Sends bytes.
    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>>;

    /// Ends the stream: the reads and writes of both sides fail or end.
    fn close(&self);
}

/// Waits for bytes of a stream; whether there were any.
pub(super) async fn take_more(stream: &dyn Stream, frames: &mut Frames) -> bool {
    let bytes = stream.read().await.unwrap_or_default();
    frames.push(&bytes);
    !bytes.is_empty()
}

/// The way to the keeper, which may be another one each time.
pub trait Connector {
    /// Connects.
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>>;
}
