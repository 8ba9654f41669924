//! Inode numbers: 1 is the root, any other the flattened FID; each known as long as the kernel counts references to it.
//!
//! Flattening is not one to one. A FID whose number is taken gets another, beyond those that flattening gives.
//!
//! File handles (`open_by_handle_at`, NFS) hold a number and a generation. They outlive what the kernel knows of a file, and a
//! mount: almost all FIDs can be had back from their numbers ([`Fid::of_flat`]). The generation tells file systems apart, and
//! files of one number.
//!
//! The kernel gives a directory one path. One that is found by its FID in `.lustre/fid` would lose its own, and could not be
//! one above that. So a directory that is reached that way, and all below it, have a second number there: an alias. The
//! kernel keeps nothing of aliases.

use crate::convert::file_attr;
use client::Found;
use foldhash::HashMap;
use fuser::{FileAttr, Generation};
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
    alias: bool,
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
            alias: false,
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
    /// The same for all mounts of a file system, and another one for other file systems.
    generation: u32,
    shards: Vec<Mutex<HashMap<u64, Node>>>,
    spare: Mutex<Spare>,
}

/// Numbers that flattening does not give.
struct Spare {
    /// The last one.
    last: u64,
    /// Those of FIDs, and of their aliases.
    by_fid: HashMap<(Fid, bool), u64>,
}

impl Nodes {
    /// `born`: when the root directory was made, if that is known.
    pub(crate) fn new(root: Fid, born: Time) -> Nodes {
        Nodes {
            root,
            generation: hashed([root.f_seq, root.ver_oid(), born.sec as u64, born.ns.into()]),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            spare: Mutex::new(Spare {
                last: SPARE,
                by_fid: HashMap::default(),
            }),
        }
    }

    /// What tells a file from those that have its number in other file systems, or have it after each other.
    pub(crate) fn generation(&self, fid: Fid) -> Generation {
        Generation(match fid {
            // The kernel has its own for the root.
            fid if fid == self.root => 0,
            fid if Fid::of_flat(fid.flatten()) == fid => self.generation.into(),
            fid => hashed([self.generation.into(), fid.f_seq, fid.ver_oid()]).into(),
        })
    }

    /// The file of a number that the kernel may have forgotten, and has from a file handle.
    pub(crate) fn fid_of_handle(&self, ino: u64) -> Option<Fid> {
        self.fid(ino).or_else(|| (ino < SPARE).then(|| Fid::of_flat(ino)))
    }

    /// Whether what is looked up in a directory is reached by a FID.
    pub(crate) fn is_by_fid(&self, dir: u64) -> bool {
        let node = |ino| Some(self.shard(ino).lock().get(&ino)?.fid == Fid::DOT_LUSTRE_FID);
        self.is_alias(dir) || node(dir).unwrap_or(false)
    }

    /// Whether a number is a directory's second one.
    pub(crate) fn is_alias(&self, ino: u64) -> bool {
        ino > SPARE && self.shard(ino).lock().get(&ino).is_some_and(|n| n.alias)
    }

    /// The kernel is given a reference to a directory by its second number.
    pub(crate) fn reference_alias(&self, fid: Fid) -> u64 {
        self.reference_spare(fid, true)
    }

    fn reference_spare(&self, fid: Fid, alias: bool) -> u64 {
        let mut spare = self.spare.lock();
        let Spare { last, by_fid } = &mut *spare;
        let ino = *by_fid.entry((fid, alias)).or_insert_with(|| {
            *last += 1;
            *last
        });
        let mut shard = self.shard(ino).lock();
        let node = shard.entry(ino).or_insert_with(|| Node {
            alias,
            ..Node::new(fid)
        });
        node.named();
        ino
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
        self.spare.lock().by_fid.get(&(fid, false)).copied()
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
        self.reference_spare(fid, false)
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
                Some(_) => shard.remove(&ino).map(|n| (n.fid, n.alias)),
                None => None,
            }
        };
        if let (Some(named), true) = (gone, ino > SPARE) {
            self.spare.lock().by_fid.remove(&named);
        }
    }
}

/// A hash that stays the same, since file handles have it.
fn hashed(words: impl IntoIterator<Item = u64>) -> u32 {
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    };
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, mix) as u32
}

#[cfg(test)]
mod tests {
    use super::{Nodes, ROOT_INO, SPARE};
    use wire::{Fid, Time};

    const A: Fid = Fid::new(0x2_0000_0401, 7, 0);

    #[test]
    fn a_number_is_known_until_the_last_reference_is_forgotten() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
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
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        assert_eq!(nodes.reference(Fid::ROOT), ROOT_INO);
        nodes.forget(ROOT_INO, 1);
        assert_eq!(nodes.fid(ROOT_INO), Some(Fid::ROOT));
    }

    #[test]
    fn a_handle_leads_to_its_file_in_each_mount_and_to_no_other_file() {
        let mount = |born| Nodes::new(Fid::ROOT, Time::secs(born));
        let (one, again, other) = (mount(1), mount(1), mount(2));
        let ino = one.reference(A);
        one.forget(ino, 1);
        assert_eq!((one.fid(ino), one.fid_of_handle(ino)), (None, Some(A)));
        assert_eq!(one.generation(A), again.generation(A));
        assert_ne!(one.generation(A), other.generation(A));
        assert_eq!(one.generation(Fid::ROOT).0, 0);
        // These cannot be had back: what has their numbers has another generation.
        for odd in [
            Fid::new(A.f_seq, A.f_oid, 1),
            Fid::new(12, 1 << 30, 0),
            Fid::new(1 << 40, 7, 0),
        ] {
            let found = one.fid_of_handle(odd.flatten()).unwrap_or_default();
            assert_ne!(found, odd);
            assert_ne!(one.generation(found), one.generation(odd));
        }
        let spare = one.reference_alias(A);
        one.forget(spare, 1);
        assert_eq!(one.fid_of_handle(spare), None);
    }

    #[test]
    fn a_directory_that_is_reached_by_its_fid_has_a_second_number() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        let by_fid = nodes.reference(Fid::DOT_LUSTRE_FID);
        let (ino, alias) = (nodes.reference(A), nodes.reference_alias(A));
        assert_ne!(ino, alias);
        assert_eq!((nodes.fid(alias), nodes.known(A)), (Some(A), Some(ino)));
        assert_eq!(nodes.reference_alias(A), alias);
        assert!(nodes.is_by_fid(by_fid) && nodes.is_by_fid(alias) && nodes.is_alias(alias));
        assert!(!nodes.is_by_fid(ino) && !nodes.is_alias(by_fid) && !nodes.is_by_fid(ROOT_INO));
        let root = nodes.reference_alias(Fid::ROOT);
        assert_eq!(
            (nodes.fid(root), nodes.known(Fid::ROOT)),
            (Some(Fid::ROOT), Some(ROOT_INO))
        );
        nodes.forget(alias, 2);
        assert_eq!((nodes.fid(alias), nodes.fid(ino)), (None, Some(A)));
    }

    #[test]
    fn files_of_one_flat_number_get_different_ones() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
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
