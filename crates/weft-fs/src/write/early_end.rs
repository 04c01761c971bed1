//! Early commits that count no more, as the disks have the contents ([`super::early_commit`]).

use weft_wire::{EarlyBlock, Question, ToKeeper};

use crate::error::Result;
use crate::raid_log::LoggedFile;
use crate::state::mounted::FsState;
use crate::write::new_lines::LineWrite;

impl FsState {
    /// The contents of these early commits are durable, or newer ones. When this returns the keeper
    /// knows that, so they are not written over newer ones if this node dies.
    pub(crate) async fn end_early(&self, blocks: &[EarlyBlock]) -> Result<()> {
        let ended = self.early_commits().end(blocks);
        let Some(link) = self.meta().link().filter(|_| !ended.is_empty()) else { return Ok(()) };
        link.post(ToKeeper::EarlyDone(ended.clone()));
        // It is answered after that. On another connection these are not among those that count.
        link.answer(Question::Alive).await?;
        self.early_commits().forget(&ended);
        Ok(())
    }

    /// A log record has all contents of these targets, and these files, durably. It is newer than
    /// early commits before it, and recovery knows that. The keeper hears of it before a commit
    /// that ends the log record.
    pub(crate) fn end_logged_early(
        &self,
        targets: &[LineWrite],
        files: &[LoggedFile],
    ) -> Result<()> {
        if self.early_commits().count() == 0 {
            return Ok(());
        }
        let mut ended = Vec::new();
        for of_file in targets.chunk_by(|one, next| one.ino == next.ino) {
            let ino = of_file[0].ino;
            // Recovery may not find the lines where the log has them.
            if self.meta().has_changed(ino)? {
                continue;
            }
            let blocks = of_file.iter().flat_map(LineWrite::written).map(|(block, _)| block);
            let attributes = files.iter().any(|file| file.ino == ino);
            ended.extend(self.early_commits().logged(ino, blocks, attributes));
        }
        if let Some(link) = self.meta().link().filter(|_| !ended.is_empty()) {
            link.post(ToKeeper::EarlyDone(ended));
        }
        Ok(())
    }
}
