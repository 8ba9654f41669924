//! Is a store consistent? Every entry leads to an inode that knows it, every link is an entry, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};

use osd::prefix_end;
use wire::Fid;

use crate::store::{NameHash, Store, keys, links};

pub(super) fn consistent(store: &Store) {
    let mut names: BTreeMap<Fid, Vec<(Fid, Vec<u8>)>> = BTreeMap::new();
    let mut subdirs: BTreeMap<Fid, u32> = BTreeMap::new();
    let mut todo = vec![Fid::ROOT];
    while let Some(dir) = todo.pop() {
        for (_, name, entry) in store.entries(dir, NameHash(0), usize::MAX).unwrap() {
            let inode = store.inode(entry.fid).unwrap();
            assert_eq!(
                inode.kind(),
                entry.kind,
                "{dir}/{name:?} has the type of its inode"
            );
            names.entry(entry.fid).or_default().push((dir, name.to_vec()));
            if inode.is_dir() {
                *subdirs.entry(dir).or_default() += 1;
                todo.push(entry.fid);
            }
        }
    }
    let rows = store.index().scan(b"i", &prefix_end(b"i"), usize::MAX).unwrap();
    let orphans: BTreeSet<Fid> = store.orphans().unwrap().into_iter().collect();
    for (key, _) in &rows {
        let fid = keys::orphan_fid(key).unwrap();
        let inode = store.inode(fid).unwrap();
        let mut found = names.remove(&fid).unwrap_or_default();
        found.sort();
        let mut known: Vec<_> = links::parse(&inode.links)
            .links
            .into_iter()
            .map(|(p, n)| (p, n.to_vec()))
            .collect();
        known.sort();
        assert_eq!(known, found, "{fid} knows its names");
        if inode.is_dir() && inode.nlink > 0 {
            assert_eq!(
                inode.nlink,
                2 + subdirs.get(&fid).copied().unwrap_or(0),
                "links of directory {fid}"
            );
            assert!(fid.is_root() || found.len() == 1, "{fid} has one parent");
        } else {
            assert_eq!(inode.nlink as usize, found.len(), "links of {fid}");
        }
        assert_eq!(
            orphans.contains(&fid),
            inode.nlink == 0,
            "{fid} without links is an orphan"
        );
    }
    assert!(names.is_empty(), "entries lead to inodes: {names:?}");
}
