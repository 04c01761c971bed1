//! The names of files, for reports.
//!
//! The way up from a folder is known from its inode; its name is looked for among those of the
//! folder that it is in. Names of files may be anywhere: they are looked for in all folders, until
//! each has one. All of that goes in steps, with other operations in between.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{FsError, Result};
use crate::format::inode::{Ino, ROOT};
use crate::meta::Tx;
use crate::state::mounted::FsState;

/// The folder and name of a file, or of a folder; none if it has none.
type Named = Option<(Ino, Vec<u8>)>;

impl FsState {
    /// Paths of files, each by one of its names, as far as they have any.
    pub(crate) async fn paths_of(&self, inos: &BTreeSet<Ino>) -> Result<BTreeMap<Ino, String>> {
        let (mut named, mut files) = (BTreeMap::new(), BTreeSet::new());
        for ino in inos {
            match self.folder_above(*ino).await? {
                Some(_) => drop(self.name_folder(*ino, &mut named).await?),
                None => drop(files.insert(*ino)),
            }
        }
        self.name_files(files, &mut named).await?;
        let mut paths = BTreeMap::new();
        for ino in inos {
            if let Some(path) = self.path_of(*ino, &mut named).await? {
                paths.insert(*ino, path);
            }
        }
        Ok(paths)
    }

    /// The files that lost blocks after they were written, if that was not told yet.
    pub(crate) async fn lost_writes(&self) -> Option<FsError> {
        let (first, inos) = self.take_losses();
        first?;
        let names: Vec<String> = match self.paths_of(&inos).await {
            // Those that were deleted since have none.
            Ok(paths) => paths.into_values().collect(),
            Err(_) => inos.iter().map(|ino| format!("inode {ino}")).collect(),
        };
        (!names.is_empty()).then_some(FsError::LostWrites(names))
    }

    /// The folder that a folder is in. None if it is none.
    async fn folder_above(&self, ino: Ino) -> Result<Option<Ino>> {
        let look = |tx: &Tx<'_>| match tx.inode(ino) {
            Ok(inode) => Ok(inode.is_folder().then_some(inode.parent)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        };
        self.meta().run(look).await
    }

    /// Looks for the name of a folder.
    async fn name_folder(&self, ino: Ino, named: &mut BTreeMap<Ino, Named>) -> Result<Named> {
        if let Some(known) = named.get(&ino) {
            return Ok(known.clone());
        }
        let above = self.folder_above(ino).await?.unwrap_or(ROOT);
        let (mut found, mut last) = (None, Vec::new());
        while found.is_none() {
            let max = self.meta().at_a_time();
            let mut some = self.meta().run(|tx| tx.names_behind((above, &last), max)).await?;
            some.retain(|(folder, ..)| *folder == above);
            let Some((_, name, _)) = some.last() else { break };
            last.clone_from(name);
            let own = some.into_iter().find(|(.., entry)| entry.ino == ino);
            found = own.map(|(folder, name, _)| (folder, name));
            self.rt().yield_now().await;
        }
        named.insert(ino, found.clone());
        Ok(found)
    }

    /// Looks for names of files.
    async fn name_files(
        &self,
        mut files: BTreeSet<Ino>,
        named: &mut BTreeMap<Ino, Named>,
    ) -> Result<()> {
        let mut last = (0, Vec::new());
        while !files.is_empty() {
            let max = self.meta().at_a_time();
            let some = self.meta().run(|tx| tx.names_behind((last.0, &last.1), max)).await?;
            let Some((folder, name, _)) = some.last() else { break };
            last = (*folder, name.clone());
            for (folder, name, entry) in some {
                if files.remove(&entry.ino) {
                    named.insert(entry.ino, Some((folder, name)));
                }
            }
            self.rt().yield_now().await;
        }
        Ok(())
    }

    async fn path_of(&self, ino: Ino, named: &mut BTreeMap<Ino, Named>) -> Result<Option<String>> {
        let (mut parts, mut way, mut at) = (Vec::new(), BTreeSet::new(), ino);
        while at != ROOT {
            let name = match at == ino {
                true => named.get(&at).cloned().flatten(),
                false => self.name_folder(at, named).await?,
            };
            let Some((folder, name)) = name.filter(|_| way.insert(at)) else { return Ok(None) };
            parts.push(String::from_utf8_lossy(&name).into_owned());
            at = folder;
        }
        parts.reverse();
        Ok(Some(format!("/{}", parts.join("/"))))
    }
}
