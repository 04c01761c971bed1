//! Streams between nodes and keepers: in the memory of one process, and over channels.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};

use weft_cluster::channel::Channel;
use weft_disk::IoFuture;
use weft_fs::{Connector, KeeperServer, Stream, memory_stream};
use weft_rt::Rt;

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

/// The way of node 0 to the keeper, which is in its process.
pub(super) struct MemoryWay {
    rt: Rt,
    server: RefCell<Option<KeeperServer>>,
    /// Channels of other nodes.
    channels: RefCell<Vec<Weak<Channel>>>,
    /// Whether other nodes are turned away.
    is_closed: Cell<bool>,
}

impl MemoryWay {
    pub(super) fn new(rt: &Rt) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            server: RefCell::default(),
            channels: RefCell::default(),
            is_closed: Cell::new(false),
        })
    }

    /// The keeper, once there is one.
    pub(super) fn server(&self) -> Option<KeeperServer> {
        self.server.borrow().clone()
    }

    /// Whether the keeper takes a channel of another node.
    pub(super) fn takes(&self, channel: &Rc<Channel>) -> bool {
        let mut channels = self.channels.borrow_mut();
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Rc::downgrade(channel));
        !self.is_closed.get()
    }

    /// Ends the channels of other nodes, and takes no more.
    pub(super) fn turn_nodes_away(&self) {
        self.is_closed.set(true);
        self.channels.take().iter().filter_map(Weak::upgrade).for_each(|channel| channel.close());
    }

    /// It leads to this keeper from now on.
    pub(super) fn lead_to(&self, server: Option<KeeperServer>) {
        let before = self.server.replace(server);
        drop(before);
    }
}

impl Connector for MemoryWay {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let server = self.server().ok_or(io::ErrorKind::ConnectionRefused)?;
            let (near, far) = memory_stream();
            self.rt.spawn(async move { server.serve(far).await });
            Ok(near)
        })
    }
}
