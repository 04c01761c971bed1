//! The file of a keeper that serves several nodes, as node 0 uses it in the same process.
//!
//! Node 0 lets the metadata grow, and checks its pages. That is done in the keeper's tasks: what
//! node 0 has begun ends with the keeper, and nothing of it comes after the next keeper has begun.

use weft_rt::Rt;
use weft_rt::sync::oneshot;

use super::image::Image;
use crate::error::{FsError, Result};

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct KeeperFile {
    pub(super) rt: Rt,
    pub(super) image: Image,
}

impl KeeperFile {
    /// What comes of something that is done with the file.
    ///
    /// # Errors
    /// If the keeper has ended.
    pub(super) async fn carry_out<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Image) -> F,
    ) -> Result<T> {
        let (done, outcome) = oneshot();
        let acting = act(self.image.clone());
        drop(self.rt.spawn(async move { done.send(acting.await) }));
        outcome.await.ok_or_else(|| FsError::Stopped("the keeper of the metadata has ended".into()))
    }
}
