//! The way to a keeper that knows only the first version of messages: it ends a connection at a
//! message of another one. A node that goes this way is one of that version to its keeper.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use super::links::{Connector, Stream};
use super::network::Network;
use weft_disk::IoFuture;

/// See the [module](self).
pub struct OldWay {
    network: Rc<Network>,
    /// The version that each connection began with.
    pub versions: Rc<RefCell<Vec<u8>>>,
}

impl OldWay {
    pub fn to(network: &Rc<Network>) -> Rc<Self> {
        Rc::new(Self { network: network.clone(), versions: Rc::default() })
    }
}

struct OldStream {
    stream: Rc<dyn Stream>,
    versions: Rc<RefCell<Vec<u8>>>,
    has_begun: Cell<bool>,
}

impl Stream for OldStream {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        self.stream.read()
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        let version = bytes[4];
        if !self.has_begun.replace(true) {
            self.versions.borrow_mut().push(version);
        }
        if version > 1 {
            self.stream.close();
            return Box::pin(async { Ok(()) });
        }
        self.stream.write(bytes)
    }

    fn close(&self) {
        self.stream.close();
    }
}

impl Connector for OldWay {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async move {
            let (stream, versions) = (self.network.connect().await?, self.versions.clone());
            let stream = OldStream { stream, versions, has_begun: Cell::new(false) };
            Ok(Rc::new(stream) as Rc<dyn Stream>)
        })
    }
}
