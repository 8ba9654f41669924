//! Inode numbers: 1 for the root, the flattened FID for most other files. A node exists while the
//! kernel holds references to it.
//!
//! Several FIDs can flatten to the same number. The FID that the kernel references first gets this
//! number; the others get numbers above [`SPARE`].
//!
//! File handles (`open_by_handle_at`, NFS) hold an inode number and a generation. They outlive the
//! kernel's nodes and a mount: [`Fid::unflatten`] restores almost every FID from its number. The
//! generation distinguishes file systems, and files that have the same number.
//!
//! The kernel allows a directory only one path. It would move a directory found by its FID to
//! `.lustre/fid`, and would refuse an ancestor of `.lustre/fid` there. Directories reached through
//! `.lustre/fid`, and all directories below them, therefore get a second number: an alias. The
//! kernel may cache neither names nor attributes of aliases.

use crate::convert::file_attr;
use client::FoundFile;
use cpt::HashMap;
use fuser::{FileAttr, Generation};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use wire::{Fid, Time};

/// The root directory's number.
pub(crate) const ROOT_INO: u64 = 1;
const SHARDS: usize = 16;
/// Numbers of aliases, and of FIDs whose flattened number another file has, are above this.
const SPARE: u64 = 1 << 63;

/// Maximum time that the kernel is assumed to need to process a reply.
const REPLY_SETTLE_TIME: Duration = Duration::from_millis(50);

struct Node {
    fid: Fid,
    /// Number of the kernel's references.
    references: u64,
    /// Whether the number is an alias.
    is_alias: bool,
    /// Time of the last reply that named the node.
    last_reply: Instant,
    /// The last attributes with a known size that went to the kernel.
    last_sent: Option<DataAttr>,
}

/// The attributes that depend on a file's data.
#[derive(Clone, Copy)]
struct DataAttr {
    /// Bytes.
    size: u64,
    /// Space on disk, in units of 512 bytes.
    blocks: u64,
    /// Access, modification and change time.
    times: [Time; 3],
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            references: 0,
            is_alias: false,
            last_reply: Instant::now(),
            last_sent: None,
        }
    }

    fn add_reference(&mut self) {
        self.references += 1;
        self.last_reply = Instant::now();
    }
}

/// The nodes that the kernel has references to.
pub(crate) struct Nodes {
    root: Fid,
    /// Hash of the root's FID and birth time: equal in all mounts of a file system. Other file
    /// systems have another birth time.
    generation: u32,
    shards: Vec<Mutex<HashMap<u64, Node>>>,
    spare: Mutex<SpareNumbers>,
}

/// Allocates the numbers above [`SPARE`].
struct SpareNumbers {
    /// The last number allocated.
    last: u64,
    /// The numbers of FIDs (false) and of their aliases (true).
    by_fid: HashMap<(Fid, bool), u64>,
}

impl Nodes {
    /// `root_btime`: birth time of the root directory; zero if unknown.
    pub(crate) fn new(root: Fid, root_btime: Time) -> Nodes {
        Nodes {
            root,
            generation: stable_hash([
                root.f_seq,
                root.ver_oid(),
                root_btime.sec as u64,
                root_btime.ns.into(),
            ]),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            spare: Mutex::new(SpareNumbers {
                last: SPARE,
                by_fid: HashMap::default(),
            }),
        }
    }

    /// The generation of a file. Distinguishes the file from other files with the same number, in
    /// this file system or another.
    pub(crate) fn generation(&self, fid: Fid) -> Generation {
        Generation(match fid {
            // The kernel uses generation 0 for the root.
            fid if fid == self.root => 0,
            fid if Fid::unflatten(fid.flatten()) == fid => self.generation.into(),
            fid => stable_hash([self.generation.into(), fid.f_seq, fid.ver_oid()]).into(),
        })
    }

    /// The FID of an inode number from a file handle. If the kernel has forgotten the file, a
    /// number from [`SPARE`] on has no FID.
    pub(crate) fn fid_of_handle(&self, ino: u64) -> Option<Fid> {
        self.fid(ino)
            .or_else(|| (ino < SPARE).then(|| Fid::unflatten(ino)))
    }

    /// Whether a directory found in this one gets an alias: this one is `.lustre/fid`, or an alias.
    pub(crate) fn gives_aliases(&self, dir: u64) -> bool {
        let node = |ino| Some(self.shard(ino).lock().get(&ino)?.fid == Fid::DOT_LUSTRE_FID);
        self.is_alias(dir) || node(dir).unwrap_or(false)
    }

    /// Whether a number is an alias.
    pub(crate) fn is_alias(&self, ino: u64) -> bool {
        ino > SPARE && self.shard(ino).lock().get(&ino).is_some_and(|n| n.is_alias)
    }

    /// Adds a reference to a directory's alias; returns the alias.
    pub(crate) fn reference_alias(&self, fid: Fid) -> u64 {
        self.reference_spare(fid, true)
    }

    /// Adds a reference to a number above [`SPARE`]; allocates the number if the FID has none.
    fn reference_spare(&self, fid: Fid, is_alias: bool) -> u64 {
        let mut spare = self.spare.lock();
        let SpareNumbers { last, by_fid } = &mut *spare;
        let ino = *by_fid.entry((fid, is_alias)).or_insert_with(|| {
            *last += 1;
            *last
        });
        let mut shard = self.shard(ino).lock();
        let node = shard.entry(ino).or_insert_with(|| Node {
            is_alias,
            ..Node::new(fid)
        });
        node.add_reference();
        ino
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.shards[(ino ^ ino >> 24) as usize % SHARDS]
    }

    /// The FID of a number, if the kernel has a reference to the number, or it is the root's.
    pub(crate) fn fid(&self, ino: u64) -> Option<Fid> {
        if ino == ROOT_INO {
            return Some(self.root);
        }
        self.shard(ino).lock().get(&ino).map(|n| n.fid)
    }

    /// The inode number to show for a file, without adding a reference.
    pub(crate) fn shown_ino(&self, fid: Fid) -> u64 {
        if fid == self.root {
            return ROOT_INO;
        }
        self.ino_of(fid).unwrap_or_else(|| fid.flatten())
    }

    /// The number of a file (not its alias), if the kernel has a reference to it, or the file is
    /// the root.
    pub(crate) fn ino_of(&self, fid: Fid) -> Option<u64> {
        if fid == self.root {
            return Some(ROOT_INO);
        }
        let ino = fid.flatten();
        if self.shard(ino).lock().get(&ino).is_some_and(|n| n.fid == fid) {
            return Some(ino);
        }
        self.spare.lock().by_fid.get(&(fid, false)).copied()
    }

    /// Whether a reply named this file so recently that the kernel may still process it.
    pub(crate) fn may_be_in_reply(&self, fid: Fid) -> bool {
        let node = |ino| Some(self.shard(ino).lock().get(&ino)?.last_reply.elapsed() < REPLY_SETTLE_TIME);
        self.ino_of(fid).and_then(node).unwrap_or(false)
    }

    /// Adds a reference of the kernel to a file; returns the file's number.
    pub(crate) fn reference(&self, fid: Fid) -> u64 {
        if fid == self.root {
            return ROOT_INO;
        }
        let ino = fid.flatten();
        {
            let mut shard = self.shard(ino).lock();
            let node = shard.entry(ino).or_insert_with(|| Node::new(fid));
            if node.fid == fid && ino > ROOT_INO {
                node.add_reference();
                return ino;
            }
        }
        self.reference_spare(fid, false)
    }

    /// The attributes to send to the kernel. The kernel trusts the size: programs with a mapping
    /// get SIGBUS beyond it. If the servers did not report the size of a file, this repeats the
    /// size, blocks and times that were last sent.
    pub(crate) fn attr(&self, ino: u64, found: &FoundFile) -> FileAttr {
        let mut attr = found.attr.clone();
        if attr.is_file()
            && let Some(node) = self.shard(ino).lock().get_mut(&ino)
        {
            if found.size_known {
                node.last_sent = Some(DataAttr {
                    size: attr.size,
                    blocks: attr.blocks,
                    times: [attr.atime, attr.mtime, attr.ctime],
                });
            } else if let Some(last_sent) = node.last_sent {
                (attr.size, attr.blocks) = (last_sent.size, last_sent.blocks);
                [attr.atime, attr.mtime, attr.ctime] = last_sent.times;
            }
        }
        file_attr(ino, &attr)
    }

    /// Drops `count` references of the kernel.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let removed = {
            let mut shard = self.shard(ino).lock();
            match shard.get_mut(&ino) {
                Some(node) if node.references > count => {
                    node.references -= count;
                    None
                }
                Some(_) => shard.remove(&ino).map(|n| (n.fid, n.is_alias)),
                None => None,
            }
        };
        if let (Some(key), true) = (removed, ino > SPARE) {
            self.spare.lock().by_fid.remove(&key);
        }
    }
}

/// A hash that must be the same in all versions of Nacre, because file handles contain it.
fn stable_hash(words: impl IntoIterator<Item = u64>) -> u32 {
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
    fn node_exists_until_its_last_reference_is_dropped() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        let ino = nodes.reference(A);
        assert_eq!((ino, nodes.reference(A)), (A.flatten(), ino));
        nodes.forget(ino, 1);
        assert_eq!(nodes.fid(ino), Some(A));
        nodes.forget(ino, 1);
        assert_eq!(nodes.fid(ino), None);
        assert_eq!(nodes.ino_of(A), None);
    }

    #[test]
    fn root_is_always_inode_one() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        assert_eq!(nodes.reference(Fid::ROOT), ROOT_INO);
        nodes.forget(ROOT_INO, 1);
        assert_eq!(nodes.fid(ROOT_INO), Some(Fid::ROOT));
    }

    #[test]
    fn file_handle_resolves_in_every_mount_of_its_file_system_only() {
        let mount = |born| Nodes::new(Fid::ROOT, Time::secs(born));
        let (one, same_fs, other_fs) = (mount(1), mount(1), mount(2));
        let ino = one.reference(A);
        one.forget(ino, 1);
        assert_eq!((one.fid(ino), one.fid_of_handle(ino)), (None, Some(A)));
        assert_eq!(one.generation(A), same_fs.generation(A));
        assert_ne!(one.generation(A), other_fs.generation(A));
        assert_eq!(one.generation(Fid::ROOT).0, 0);
        // These FIDs cannot be restored; the files that have their numbers have another generation.
        for fid in [
            Fid::new(A.f_seq, A.f_oid, 1),
            Fid::new(12, 1 << 30, 0),
            Fid::new(1 << 40, 7, 0),
        ] {
            let found = one.fid_of_handle(fid.flatten()).unwrap_or_default();
            assert_ne!(found, fid);
            assert_ne!(one.generation(found), one.generation(fid));
        }
        let spare = one.reference_alias(A);
        one.forget(spare, 1);
        assert_eq!(one.fid_of_handle(spare), None);
    }

    #[test]
    fn directory_reached_by_fid_gets_an_alias() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        let by_fid = nodes.reference(Fid::DOT_LUSTRE_FID);
        let (ino, alias) = (nodes.reference(A), nodes.reference_alias(A));
        assert_ne!(ino, alias);
        assert_eq!((nodes.fid(alias), nodes.ino_of(A)), (Some(A), Some(ino)));
        assert_eq!(nodes.reference_alias(A), alias);
        assert!(nodes.gives_aliases(by_fid) && nodes.gives_aliases(alias) && nodes.is_alias(alias));
        assert!(!nodes.gives_aliases(ino) && !nodes.is_alias(by_fid) && !nodes.gives_aliases(ROOT_INO));
        let root = nodes.reference_alias(Fid::ROOT);
        assert_eq!(
            (nodes.fid(root), nodes.ino_of(Fid::ROOT)),
            (Some(Fid::ROOT), Some(ROOT_INO))
        );
        nodes.forget(alias, 2);
        assert_eq!((nodes.fid(alias), nodes.fid(ino)), (None, Some(A)));
    }

    #[test]
    fn fids_that_flatten_alike_get_different_numbers() {
        let nodes = Nodes::new(Fid::ROOT, Time::default());
        let twin = Fid::new(A.f_seq, A.f_oid, 1);
        assert_eq!(A.flatten(), twin.flatten());
        let (a, b) = (nodes.reference(A), nodes.reference(twin));
        assert_ne!(a, b);
        assert!(b > SPARE);
        assert_eq!((nodes.fid(a), nodes.fid(b)), (Some(A), Some(twin)));
        assert_eq!(nodes.shown_ino(twin), b);
        nodes.forget(b, 1);
        assert_eq!((nodes.fid(b), nodes.ino_of(twin)), (None, None));
    }
}
