//! Ways to the keeper: in the memory of its process, and to wherever the record says that it is.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};

use weft_cluster::{Membership, Outlook};
use weft_disk::IoFuture;
use weft_fs::{Connector, KeeperServer, Stream, memory_stream};
use weft_rt::Rt;

use crate::Say;

/// The way of node 0 to the keeper, which is in its process, and what other nodes come by.
pub struct MemoryWay {
    rt: Rt,
    server: RefCell<Option<KeeperServer>>,
    /// Streams of other nodes.
    streams: RefCell<Vec<Weak<dyn Stream>>>,
    /// Whether other nodes are turned away.
    is_closed: Cell<bool>,
}

impl std::fmt::Debug for MemoryWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryWay").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

impl MemoryWay {
    /// One that leads nowhere yet.
    pub fn new(rt: &Rt) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            server: RefCell::default(),
            streams: RefCell::default(),
            is_closed: Cell::new(false),
        })
    }

    /// The keeper, once there is one.
    pub fn server(&self) -> Option<KeeperServer> {
        self.server.borrow().clone()
    }

    /// Another node has come. While there is no keeper that takes it, it has to try again.
    pub fn accept(&self, stream: Rc<dyn Stream>) {
        let Some(server) = self.server().filter(|_| !self.is_closed.get()) else {
            return stream.close();
        };
        let mut streams = self.streams.borrow_mut();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Rc::downgrade(&stream));
        self.rt.spawn(async move { server.serve(stream).await });
    }

    /// Ends the streams of other nodes, and takes no more.
    pub(crate) fn turn_nodes_away(&self) {
        self.is_closed.set(true);
        self.streams.take().iter().filter_map(Weak::upgrade).for_each(|stream| stream.close());
    }

    /// It leads to this keeper from now on.
    pub(crate) fn lead_to(&self, server: Option<KeeperServer>) {
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

/// Connects to the keeper at an address, or says why that fails.
pub type Dial = Rc<dyn Fn(String) -> IoFuture<'static, Result<Rc<dyn Stream>, String>>>;

/// The way of another node to the keeper, wherever it is now.
pub struct KeeperWay {
    rt: Rt,
    membership: Rc<Membership>,
    dial: Dial,
    say: Say,
    /// What went wrong last.
    said: RefCell<String>,
}

impl std::fmt::Debug for KeeperWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeeperWay").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl KeeperWay {
    /// The way of a process with this membership.
    pub fn new(rt: &Rt, membership: &Rc<Membership>, dial: Dial, say: Say) -> Rc<Self> {
        let (rt, membership, said) = (rt.clone(), membership.clone(), RefCell::default());
        Rc::new(Self { rt, membership, dial, say, said })
    }

    /// Where the keeper is; none while there is none.
    pub fn address(&self) -> Option<String> {
        self.membership.outlook().keeper_address().map(str::to_owned)
    }

    /// Says what goes wrong, once.
    pub fn say(&self, text: String) {
        if *self.said.borrow() != text {
            (self.say)(&text);
            *self.said.borrow_mut() = text;
        }
    }
}

impl Connector for KeeperWay {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let Some(address) = self.address() else {
                self.say("waiting: there is no keeper".into());
                return Err(io::ErrorKind::NotConnected.into());
            };
            match (self.dial)(address.clone()).await {
                Ok(stream) => {
                    self.said.borrow_mut().clear();
                    self.rt.spawn(end_with_keeper(self.membership.clone(), address, &stream));
                    Ok(stream)
                }
                Err(error) => {
                    self.say(format!("waiting for the keeper: {error}"));
                    Err(io::Error::other(error))
                }
            }
        })
    }
}

/// Ends a stream when the keeper is elsewhere: one whose machine hangs does not do so itself.
fn end_with_keeper(
    membership: Rc<Membership>,
    address: String,
    stream: &Rc<dyn Stream>,
) -> impl Future<Output = ()> + 'static {
    let stream = Rc::downgrade(stream);
    async move {
        let is_elsewhere = |outlook: &Outlook| {
            let now = outlook.keeper_address();
            stream.strong_count() == 0 || now.is_some_and(|now| now != address)
        };
        membership.until(|outlook| is_elsewhere(outlook).then_some(())).await;
        if let Some(stream) = stream.upgrade() {
            stream.close();
        }
    }
}
