//! Listing of a striped directory: the entries of all stripes in one order.
//!
//! Entries are in the order of their hashes, and at one hash in the order of the stripes. So the
//! order is stable, and a hash is a position at which any reader can continue.

use super::dir::{DirHandle, END_OFFSET};
use crate::client::Client;
use crate::dircache::DirChunk;
use std::sync::Arc;
use wire::dirpage::DirEntry;
use wire::striping::LmvLayout;
use wire::{Errno, Fid};

impl Client {
    /// The chunk of a striped directory's entries that starts at `hash`. It ends where the first of
    /// the stripes' chunks ends. Leaves out lost stripes.
    pub(super) async fn merged_chunk(
        &self,
        dir: &DirHandle,
        layout: &LmvLayout,
        hash: u64,
    ) -> Result<Arc<DirChunk>, Errno> {
        let mut chunks = std::mem::take(&mut dir.position.lock().stripes);
        chunks.resize(layout.stripes.len(), None);
        for (stripe, chunk) in layout.stripes.iter().zip(&mut chunks) {
            if chunk.as_ref().is_some_and(|chunk| chunk.spans(hash)) {
                continue;
            }
            *chunk = match stripe.is_zero() {
                true => None,
                false => {
                    let version = layout.head.lmv_layout_version;
                    let stripe = self.stripe(dir.fid, *stripe, version).await?;
                    match self.dir_chunk(dir, &stripe, hash).await {
                        // Without its own stripe the directory is damaged, not removed.
                        Err(Errno::ENOENT | Errno::ESTALE) => return Err(Errno::EIO),
                        chunk => Some(chunk?),
                    }
                }
            };
        }
        let merged = merge(dir.fid, hash, &chunks);
        dir.position.lock().stripes = chunks;
        Ok(Arc::new(merged))
    }
}

/// Merges the stripes' chunks, each of which spans `hash`, from `hash` on. `dir`: the whole
/// directory, the file of the entry `.`.
fn merge(dir: Fid, hash: u64, chunks: &[Option<Arc<DirChunk>>]) -> DirChunk {
    let present = || chunks.iter().flatten();
    let next = present().map(|chunk| chunk.next).min().unwrap_or(END_OFFSET);
    let mut entries: Vec<DirEntry> = Vec::new();
    for (index, chunk) in present().enumerate() {
        let own = chunk.entries.iter().filter(|e| (hash..next).contains(&e.hash));
        // Each stripe has `.` and `..`.
        let own = own.filter(|e| index == 0 || !is_dot(e));
        entries.extend(own.cloned());
    }
    for entry in entries.iter_mut().filter(|e| &e.name[..] == b".") {
        entry.fid = dir;
    }
    // The sort is stable, so entries of one hash stay in the order of the stripes.
    entries.sort_by_key(|e| e.hash);
    DirChunk {
        start: hash,
        entries,
        next,
    }
}

fn is_dot(entry: &DirEntry) -> bool {
    matches!(&entry.name[..], b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::{DirChunk, END_OFFSET, merge};
    use bytes::Bytes;
    use std::sync::Arc;
    use wire::Fid;
    use wire::dirpage::DirEntry;

    const DIR: Fid = Fid::new(0x400, 1, 0);

    fn chunk(start: u64, next: u64, entries: &[(u64, &'static str)]) -> Option<Arc<DirChunk>> {
        let entry = |(hash, name): &(u64, &'static str)| {
            DirEntry::new(
                Fid::new(0x500, 1, 0),
                *hash,
                Bytes::from_static(name.as_bytes()),
                0o100_000,
            )
        };
        Some(Arc::new(DirChunk {
            start,
            entries: entries.iter().map(entry).collect(),
            next,
        }))
    }

    fn names(merged: &DirChunk) -> Vec<String> {
        let names = merged.entries.iter().map(|e| String::from_utf8_lossy(&e.name));
        names.map(Into::into).collect()
    }

    #[test]
    fn entries_of_all_stripes_are_in_the_order_of_their_hashes() {
        let stripes = [
            chunk(0, END_OFFSET, &[(1, "."), (2, ".."), (7, "c"), (9, "d")]),
            chunk(0, END_OFFSET, &[(1, "."), (2, ".."), (5, "a"), (7, "b")]),
        ];
        let merged = merge(DIR, 0, &stripes);
        assert_eq!(names(&merged), [".", "..", "a", "c", "b", "d"]);
        assert_eq!((merged.entries[0].fid, merged.next), (DIR, END_OFFSET));
    }

    #[test]
    fn a_part_ends_where_the_first_stripes_chunk_ends() {
        let stripes = [
            chunk(0, 8, &[(3, "a"), (7, "b")]),
            None,
            chunk(0, END_OFFSET, &[(5, "c"), (8, "d"), (9, "e")]),
        ];
        let first = merge(DIR, 0, &stripes);
        assert_eq!(
            (names(&first), first.next),
            (vec!["a".into(), "c".into(), "b".into()], 8)
        );
        let stripes = [chunk(8, 20, &[(8, "x")]), None, stripes[2].clone()];
        let second = merge(DIR, 8, &stripes);
        assert_eq!(names(&second), ["x", "d", "e"]);
        assert_eq!((second.start, second.next), (8, 20));
    }

    #[test]
    fn a_reader_can_continue_at_any_hash() {
        let stripes = [
            chunk(0, END_OFFSET, &[(3, "a"), (7, "b")]),
            chunk(0, END_OFFSET, &[(5, "c"), (7, "d")]),
        ];
        assert_eq!(names(&merge(DIR, 5, &stripes)), ["c", "b", "d"]);
        assert_eq!(names(&merge(DIR, 8, &stripes)), Vec::<String>::new());
    }
}
