//! Operations that may have to wait for another node.

use std::cell::Cell;
use std::rc::Rc;

use weft_rt::{MILLISECOND, Rt};

/// Begins an operation, and tells whether it has ended.
pub fn begin(rt: &Rt, operation: impl Future<Output = ()> + 'static) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let flag = ended.clone();
    drop(rt.spawn(async move {
        operation.await;
        flag.set(true);
    }));
    ended
}

/// Longer than an operation takes that does not wait.
pub async fn a_while(rt: &Rt) {
    rt.sleep(50 * MILLISECOND).await;
}
