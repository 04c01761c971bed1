//! Numbers for new files, which a node takes in ranges ([`super::node`]), from the store or from
//! the keeper of several nodes.

use super::transaction::Tx;
use crate::error::Result;
use crate::format::inode::Ino;

/// The first number that was not given to any file, nor taken to be given to one; in the state.
pub(crate) const NEXT_INODE: &str = "next inode";
/// How many numbers for new files are taken at a time.
pub(super) const NUMBERS: Ino = 1024;

impl Tx<'_> {
    /// A number for a new file.
    pub(crate) fn new_number(&self) -> Result<Ino> {
        if let Some(number) = self.node.next_number() {
            return Ok(number);
        }
        if let Some(numbers) = self.keeper.numbers()? {
            return Ok(self.node.take_range(numbers));
        }
        let from = self.state(NEXT_INODE)?;
        let end = from + NUMBERS;
        self.set_state(NEXT_INODE, end)?;
        Ok(self.node.take_numbers(from..end))
    }

    /// The numbers that were not used go back, unless a keeper gave them: it may have given others
    /// after them.
    pub(super) fn return_numbers(&self) -> Result<()> {
        if self.keeper.here().is_none() {
            return Ok(());
        }
        match self.node.return_numbers() {
            Some(unused) => self.set_state(NEXT_INODE, unused),
            None => Ok(()),
        }
    }
}
