//! Inode numbers: 1 is the root, any other the flattened FID; each known as long as the kernel counts references to it.
//!
//! Flattening is not one to one. A FID whose number is taken gets another, beyond those that flattening gives.

use crate::convert::file_attr;
use client::Found;
use foldhash::HashMap;
use fuser::FileAttr;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use wire::{Fid, Time};

/// The root directory's number.
pub(crate) const ROOT_INO: u64 = 1;
const SHARDS: usize = 16;
/// Numbers for FIDs whose own is taken start here.
const SPARE: u64 = 1 << 63;

/// How long after an answer the kernel may not have taken in what the answer said.
const SETTLE: Duration = Duration::from_millis(50);

struct Node {
    fid: Fid,
    lookups: u64,
    /// When an answer last named it.
    answered: Instant,
    /// What the kernel was last told of its data.
    told: Option<ToldData>,
}

/// The attributes of a file that its data determines.
#[derive(Clone, Copy)]
struct ToldData {
    size: u64,
    blocks: u64,
    times: [Time; 3],
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            lookups: 0,
            answered: Instant::now(),
            told: None,
        }
    }

    fn named(&mut self) {
        self.lookups += 1;
        self.answered = Instant::now();
    }
}

/// The nodes that the kernel knows.
pub(crate) struct Nodes {
    root: Fid,
    shards: Vec<Mutex<HashMap<u64, Node>>>,
    spare: Mutex<(u64, HashMap<Fid, u64>)>,
}

impl Nodes {
    pub(crate) fn new(root: Fid) -> Nodes {
        Nodes {
            root,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            spare: Mutex::new((SPARE, HashMap::default())),
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.shards[(ino ^ ino >> 24) as usize % SHARDS]
    }

    /// The file of a number.
    pub(crate) fn fid(&self, ino: u64) -> Option<Fid> {
        if ino == ROOT_INO {
            return Some(self.root);
        }
        self.shard(ino).lock().get(&ino).map(|n| n.fid)
    }

    /// The number to show for a file that the kernel is not given a reference to.
    pub(crate) fn number(&self, fid: Fid) -> u64 {
        if fid == self.root {
            return ROOT_INO;
        }
        self.known(fid).unwrap_or_else(|| fid.flatten())
    }

    /// The number under which the kernel knows a file.
    pub(crate) fn known(&self, fid: Fid) -> Option<u64> {
        if fid == self.root {
            return Some(ROOT_INO);
        }
        let ino = fid.flatten();
        if self.shard(ino).lock().get(&ino).is_some_and(|n| n.fid == fid) {
            return Some(ino);
        }
        self.spare.lock().1.get(&fid).copied()
    }

    /// Whether an answer named this file so lately that the kernel may not have taken it in yet.
    pub(crate) fn is_settling(&self, fid: Fid) -> bool {
        let node = |ino| Some(self.shard(ino).lock().get(&ino)?.answered.elapsed() < SETTLE);
        self.known(fid).and_then(node).unwrap_or(false)
    }

    /// The kernel is given a reference to a file.
    pub(crate) fn reference(&self, fid: Fid) -> u64 {
        if fid == self.root {
            return ROOT_INO;
        }
        let ino = fid.flatten();
        {
            let mut shard = self.shard(ino).lock();
            let node = shard.entry(ino).or_insert_with(|| Node::new(fid));
            if node.fid == fid && ino > ROOT_INO {
                node.named();
                return ino;
            }
        }
        let mut spare = self.spare.lock();
        let (next, by_fid) = &mut *spare;
        let ino = *by_fid.entry(fid).or_insert_with(|| {
            *next += 1;
            *next
        });
        let mut shard = self.shard(ino).lock();
        shard.entry(ino).or_insert_with(|| Node::new(fid)).named();
        ino
    }

    /// The attributes to tell the kernel of a file. It takes a size that it is told for true, and programs that have mapped
    /// the file then get SIGBUS beyond it: where the size is not known now, it is told the last one again.
    pub(crate) fn attr(&self, ino: u64, found: &Found) -> FileAttr {
        let mut attr = found.attr.clone();
        if attr.is_file()
            && let Some(node) = self.shard(ino).lock().get_mut(&ino)
        {
            if found.size_known {
                node.told = Some(ToldData {
                    size: attr.size,
                    blocks: attr.blocks,
                    times: [attr.atime, attr.mtime, attr.ctime],
                });
            } else if let Some(told) = node.told {
                (attr.size, attr.blocks) = (told.size, told.blocks);
                [attr.atime, attr.mtime, attr.ctime] = told.times;
            }
        }
        file_attr(ino, &attr)
    }

    /// The kernel gives back `count` references.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let gone = {
            let mut shard = self.shard(ino).lock();
            match shard.get_mut(&ino) {
                Some(node) if node.lookups > count => {
                    node.lookups -= count;
                    None
                }
                Some(_) => shard.remove(&ino).map(|n| n.fid),
                None => None,
            }
        };
        if let (Some(fid), true) = (gone, ino > SPARE) {
            self.spare.lock().1.remove(&fid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Nodes, ROOT_INO, SPARE};
    use wire::Fid;

    const A: Fid = Fid::new(0x2_0000_0401, 7, 0);

    #[test]
    fn a_number_is_known_until_the_last_reference_is_forgotten() {
        let nodes = Nodes::new(Fid::ROOT);
        let ino = nodes.reference(A);
        assert_eq!((ino, nodes.reference(A)), (A.flatten(), ino));
        nodes.forget(ino, 1);
        assert_eq!(nodes.fid(ino), Some(A));
        nodes.forget(ino, 1);
        assert_eq!(nodes.fid(ino), None);
        assert_eq!(nodes.known(A), None);
    }

    #[test]
    fn the_root_is_always_one() {
        let nodes = Nodes::new(Fid::ROOT);
        assert_eq!(nodes.reference(Fid::ROOT), ROOT_INO);
        nodes.forget(ROOT_INO, 1);
        assert_eq!(nodes.fid(ROOT_INO), Some(Fid::ROOT));
    }

    #[test]
    fn files_of_one_flat_number_get_different_ones() {
        let nodes = Nodes::new(Fid::ROOT);
        let twin = Fid::new(A.f_seq, A.f_oid, 1);
        assert_eq!(A.flatten(), twin.flatten());
        let (a, b) = (nodes.reference(A), nodes.reference(twin));
        assert_ne!(a, b);
        assert!(b > SPARE);
        assert_eq!((nodes.fid(a), nodes.fid(b)), (Some(A), Some(twin)));
        assert_eq!(nodes.number(twin), b);
        nodes.forget(b, 1);
        assert_eq!((nodes.fid(b), nodes.known(twin)), (None, None));
    }
}
