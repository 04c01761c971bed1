//! How the log reaches its members.

use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::{Disk, WriteOpts};
use weft_rt::{Frozen, Rt};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::log::{Log, LogHost};

impl LogHost for Engine {
    fn handle(&self) -> Rc<Self> {
        Engine::handle(self)
    }

    fn rt(&self) -> &Rt {
        Engine::rt(self)
    }

    fn log(&self) -> &Log {
        Engine::log(self).expect("an array with a log")
    }

    async fn write_batch(&self, slot: SlotNo, offset: u64, batch: Frozen) -> bool {
        let Some(disk) = self.members().disk(slot) else { return false };
        let own = self.write_with_room(slot, &disk, offset, batch.clone(), WriteOpts::USER_FUA);
        let second = self.members().second_disk(slot);
        let also = async |second: &dyn Disk| second.write(offset, batch, WriteOpts::USER_FUA).await;
        let result = self.on_both(slot, own, second.as_ref(), also).await;
        if let Err(error) = &result {
            self.data_write_failed(slot, &disk, error).await;
        }
        result.is_ok()
    }

    async fn flush_members(&self) {
        Engine::flush_members(self).await;
    }

    async fn settled(&self) -> Result<(), ArrayError> {
        Engine::settled(self).await
    }

    fn check_whole(&self) -> Result<(), ArrayError> {
        Engine::check_whole(self)
    }
}
