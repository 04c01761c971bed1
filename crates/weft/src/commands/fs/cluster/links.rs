//! Channels between nodes and keepers, as streams of weftfs.

use std::io;
use std::rc::Rc;

use weft_cluster::channel::Channel;
use weft_disk::IoFuture;
use weft_fs::Stream;

/// A channel as a stream of weftfs.
pub(super) struct ChannelStream(pub(super) Rc<Channel>);

impl Stream for ChannelStream {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(self.0.read())
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.0.write(bytes))
    }

    fn close(&self) {
        self.0.close();
    }
}
