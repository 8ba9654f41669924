//! Directory pages: the entries in the order of their hashes, "." and ".." first.
//!
//! The order depends only on the names, so it does not change while entries are added and removed.
//! A client that continues from its last position gets each entry that exists during the whole
//! listing exactly once.

use bytes::Bytes;
use wire::{
    Errno, Fid, LDF_COLLIDE, LUDA_64BITHASH, MDS_DIR_END_OFF,
    dirpage::{DirEntry, PAGE, PageBuilder},
};

use crate::{
    namespace::parent_of,
    store::{
        NameHash, S_IFDIR, Store,
        keys::{HASH_DOT, HASH_DOTDOT},
    },
};

/// Maximum number of entries read from the store at once.
const ENTRIES_PER_READ: usize = 256;

/// The pages of a directory from the hash `start` on: at most `bytes` in total, but at least one
/// page. `ENOTDIR` if the inode is no directory.
pub(crate) async fn pages(store: &Store, dir: Fid, start: u64, bytes: usize) -> Result<Vec<Bytes>, Errno> {
    let mut reader = EntryReader::new(store, dir, NameHash(start)).await?;
    let mut pages = Vec::new();
    let mut next = reader.next().await?;
    let mut hash_start = start;
    for _ in 0..(bytes / PAGE).max(1) {
        let mut page = PageBuilder::new(hash_start);
        let mut overflow = None;
        while let Some(entry) = next.take() {
            match page.push(entry) {
                Ok(()) => next = reader.next().await?,
                Err(entry) => {
                    overflow = Some(entry);
                    break;
                }
            }
        }
        let hash_end = overflow.as_ref().map_or(MDS_DIR_END_OFF, |e| e.hash);
        // Tells the client that the next page begins with the hash of this page's last entry.
        let collides = page.last_hash() == Some(hash_end);
        pages.push(page.finish(hash_end, if collides { LDF_COLLIDE } else { 0 }));
        if overflow.is_none() {
            break;
        }
        (next, hash_start) = (overflow, hash_end);
    }
    Ok(pages)
}

/// Reads the entries of a directory one after the other, a batch of records at a time.
struct EntryReader<'a> {
    store: &'a Store,
    dir: Fid,
    /// Entries read from the store and not returned yet, in reverse order.
    fetched: Vec<DirEntry>,
    /// The name of the last entry read from the store; `None` if the store has no more.
    last_fetched: Option<Bytes>,
}

impl<'a> EntryReader<'a> {
    async fn new(store: &'a Store, dir: Fid, from: NameHash) -> Result<EntryReader<'a>, Errno> {
        let inode = store.inode(dir).await?;
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let mut reader = EntryReader {
            store,
            dir,
            fetched: Vec::new(),
            last_fetched: None,
        };
        if inode.nlink == 0 {
            return Ok(reader);
        }
        reader.fill(store.entries(dir, from, ENTRIES_PER_READ).await?);
        if from <= HASH_DOTDOT {
            reader.fetched.push(entry(
                parent_of(dir, &inode),
                HASH_DOTDOT,
                Bytes::from_static(b".."),
                S_IFDIR,
            ));
        }
        if from == HASH_DOT {
            reader
                .fetched
                .push(entry(dir, HASH_DOT, Bytes::from_static(b"."), S_IFDIR));
        }
        Ok(reader)
    }

    /// Replaces the fetched entries by those of a read of up to [`ENTRIES_PER_READ`] entries.
    fn fill(&mut self, rows: Vec<(NameHash, Bytes, crate::store::Entry)>) {
        self.last_fetched = rows
            .last()
            .filter(|_| rows.len() == ENTRIES_PER_READ)
            .map(|(_, name, _)| name.clone());
        self.fetched = rows
            .into_iter()
            .rev()
            .map(|(hash, name, e)| entry(e.fid, hash, name, e.kind))
            .collect();
    }

    async fn next(&mut self) -> Result<Option<DirEntry>, Errno> {
        if self.fetched.is_empty()
            && let Some(name) = self.last_fetched.take()
        {
            let rows = self
                .store
                .entries_after(self.dir, &name, ENTRIES_PER_READ)
                .await?;
            self.fill(rows);
        }
        Ok(self.fetched.pop())
    }
}

fn entry(fid: Fid, hash: NameHash, name: Bytes, kind: u32) -> DirEntry {
    DirEntry {
        attrs: LUDA_64BITHASH,
        ..DirEntry::new(fid, hash.0, name, kind as u16)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{collections::BTreeSet, sync::Arc};
    use testbase::Wait;

    use super::pages;
    use crate::{
        cred::Cred,
        namespace::{NewInode, UnlinkArgs, create, make_root, unlink},
        store::Store,
    };
    use osd::MemoryIndex;
    use wire::{Errno, Fid, MDS_DIR_END_OFF, Time, dirpage::DirPage};

    fn store(files: u32) -> Store {
        let store = Store::new(Arc::new(MemoryIndex::default()));
        make_root(&store, (0, 0), Time::default()).wait().unwrap();
        for i in 1..=files {
            let node = NewInode {
                fid: Fid::new(0x2_0000_0401, i, 0),
                mode: 0o100644,
                ..NewInode::default()
            };
            create(
                &store,
                &Cred::root(),
                Fid::ROOT,
                format!("file{i}").as_bytes(),
                &node,
            )
            .wait()
            .unwrap();
        }
        store
    }

    /// Lists the root directory in reads of `bytes`, and calls `after_read` after each of them.
    fn list(store: &Store, bytes: usize, mut after_read: impl FnMut(&Store)) -> Vec<String> {
        let mut names = Vec::new();
        let mut position = 0;
        while position != MDS_DIR_END_OFF {
            for page in pages(store, Fid::ROOT, position, bytes).wait().unwrap() {
                let page = DirPage::parse(&page).unwrap();
                assert_eq!(page.hash_start, position);
                names.extend(
                    page.entries
                        .iter()
                        .map(|e| String::from_utf8(e.name.to_vec()).unwrap()),
                );
                position = page.hash_end;
            }
            after_read(store);
        }
        names
    }

    #[test]
    fn each_entry_is_read_once_for_any_read_size() {
        let store = store(1000);
        for bytes in [1, 4096, 16384, 1 << 20] {
            let names = list(&store, bytes, |_| {});
            assert_eq!(names[..2], [".", ".."]);
            assert_eq!(names.len(), 1002);
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 1002);
        }
        assert_eq!(pages(&store, Fid::ROOT, 0, 1 << 20).wait().unwrap().len(), 12);
    }

    #[test]
    fn entries_that_exist_during_the_whole_listing_are_read_once() {
        let store = store(500);
        let mut i = 0;
        let names = list(&store, 4096, |store| {
            for _ in 0..50 {
                i += 1;
                let name = format!("file{}", 2 * i);
                let args = UnlinkArgs {
                    parent: Fid::ROOT,
                    name: name.as_bytes(),
                    is_rmdir: false,
                    time: Time::default(),
                };
                let _ = unlink(store, &Cred::root(), args).wait();
                let node = NewInode {
                    fid: Fid::new(0x2_0000_0402, i, 0),
                    mode: 0o100644,
                    ..NewInode::default()
                };
                create(
                    store,
                    &Cred::root(),
                    Fid::ROOT,
                    format!("new{i}").as_bytes(),
                    &node,
                )
                .wait()
                .unwrap();
            }
        });
        for i in (1..500).step_by(2) {
            assert_eq!(
                names.iter().filter(|n| **n == format!("file{i}")).count(),
                1,
                "file{i}"
            );
        }
    }

    #[test]
    fn empty_directory_lists_only_the_dots() {
        let store = store(0);
        assert_eq!(list(&store, 4096, |_| {}), [".", ".."]);
        let page =
            DirPage::parse(&pages(&store, Fid::ROOT, MDS_DIR_END_OFF, 4096).wait().unwrap()[0]).unwrap();
        assert_eq!((page.entries.len(), page.hash_end), (0, MDS_DIR_END_OFF));
        assert_eq!(
            pages(&store, Fid::new(1, 2, 3), 0, 4096).wait().unwrap_err(),
            Errno::ENOENT
        );
    }
}
