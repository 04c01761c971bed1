//! Which of the disks that a process was given belong to the file system.

use std::rc::Rc;

use weft_disk::Disk;
use weft_fs::Label;

/// The disks of the file system, and those that cannot be read: what they are is for the mount to
/// say. A disk that has left has no label any more, and may still be on the command lines of other
/// machines: it must keep none of them from mounting.
pub(crate) async fn labelled(disks: &[Rc<dyn Disk>]) -> Vec<Rc<dyn Disk>> {
    let (mut kept, mut any) = (Vec::new(), false);
    for disk in disks {
        let label = Label::read(&**disk).await;
        any |= matches!(label, Ok(Some(_)));
        if !matches!(label, Ok(None)) {
            kept.push(disk.clone());
        }
    }
    if any { kept } else { disks.to_vec() }
}
