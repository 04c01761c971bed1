//! Streams of bytes between nodes and their keeper.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use weft_disk::IoFuture;
use weft_rt::sync::Notify;
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

/// The two ends of a stream in memory, for a node and a keeper in one process. What was written
/// before the stream was closed can still be read.
#[must_use]
pub fn memory_stream() -> (Rc<dyn Stream>, Rc<dyn Stream>) {
    let (there, back) = (Rc::<Pipe>::default(), Rc::<Pipe>::default());
    let near = MemoryStream { incoming: back.clone(), outgoing: there.clone() };
    let far = MemoryStream { incoming: there, outgoing: back };
    (Rc::new(near), Rc::new(far))
}

/// Bytes in one direction.
#[derive(Default)]
struct Pipe {
    bytes: RefCell<VecDeque<Vec<u8>>>,
    is_closed: Cell<bool>,
    told: Notify,
}

/// One end of a stream in memory.
struct MemoryStream {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
}

impl Stream for MemoryStream {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(async move {
            loop {
                let told = self.incoming.told.wait();
                if let Some(bytes) = self.incoming.bytes.borrow_mut().pop_front() {
                    return Ok(bytes);
                }
                if self.incoming.is_closed.get() {
                    return Ok(Vec::new());
                }
                told.await;
            }
        })
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if self.outgoing.is_closed.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if !bytes.is_empty() {
                self.outgoing.bytes.borrow_mut().push_back(bytes);
                self.outgoing.told.notify_all();
            }
            Ok(())
        })
    }

    fn close(&self) {
        for pipe in [&self.incoming, &self.outgoing] {
            pipe.is_closed.set(true);
            pipe.told.notify_all();
        }
    }
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

#[cfg(test)]
mod tests {
    use weft_rt::{Schedule, virtual_rt};

    use super::*;

    #[test]
    fn both_ends_of_a_stream_in_memory_read_what_the_other_one_wrote() {
        let rt = virtual_rt(Schedule::Fifo);
        let inner = rt.clone();
        rt.block_on(async move {
            let (near, far) = memory_stream();
            let reader = far.clone();
            let waits = inner.spawn(async move { reader.read().await.expect("read") });
            inner.yield_now().await;
            near.write(Vec::new()).await.expect("written");
            for bytes in [b"one", b"two"] {
                near.write(bytes.to_vec()).await.expect("written");
            }
            far.write(b"back".to_vec()).await.expect("written");
            assert_eq!(waits.await, b"one", "no bytes are not the end");
            assert_eq!(near.read().await.expect("read"), b"back");
            let reader = near.clone();
            let waits = inner.spawn(async move { reader.read().await.expect("read") });
            inner.yield_now().await;
            far.close();
            assert_eq!(waits.await, b"", "the end");
            assert_eq!(far.read().await.expect("read"), b"two");
            assert_eq!(far.read().await.expect("read"), b"", "the end");
            for end in [&near, &far] {
                let error = end.write(b"late".to_vec()).await.expect_err("it is closed");
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            }
        });
    }
}
