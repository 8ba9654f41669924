//! The model: a file system in memory that follows the rules of POSIX and Linux for names,
//! permissions, open files, locks and extended attributes.

use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};

/// Inode number in the model.
pub(crate) type Ino = u64;

/// The directory in which a sequence of operations runs: the root of the model.
pub(crate) const ROOT: Ino = 1;
/// Uid and gid of the ordinary user.
pub(crate) const USER: u32 = 1000;
/// Maximum number of symbolic links in a path.
const LINKS_MAX: usize = 40;

/// The user of an operation, by uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cred(pub(crate) u32);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<String, Ino>),
    Symlink(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) xattrs: BTreeMap<String, String>,
    /// The mtime in seconds that `utimensat` set; `None` before that and after a later change.
    pub(crate) mtime: Option<i64>,
    /// `flock` locks by slot of the open file; true if exclusive.
    pub(crate) flocks: BTreeMap<usize, bool>,
    /// `fcntl` locks by owner; true if exclusive.
    pub(crate) fcntls: BTreeMap<usize, bool>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub(crate) ino: Ino,
    /// The mount through which the file was opened.
    pub(crate) mount: usize,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
}

/// The result of a path lookup: the parent directory, the last name, and the inode if it exists.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(crate) dir: Ino,
    pub(crate) name: String,
    pub(crate) ino: Option<Ino>,
}

/// Behaviour that depends on the file system or on the kernel's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FsBehaviour {
    /// Whether each mount is a separate owner of `fcntl` locks. On a local disk, this process owns
    /// all locks.
    pub(crate) owner_per_mount: bool,
    /// Whether `flock` locks conflict with `fcntl` locks. In Nacre they do, because Lustre's
    /// protocol does not distinguish them.
    pub(crate) lock_kinds_conflict: bool,
    /// `/proc/sys/fs/protected_regular`.
    pub(crate) protected_regular: u32,
    /// `/proc/sys/fs/protected_hardlinks`.
    pub(crate) protected_hardlinks: u32,
}

/// The state of the model.
pub(crate) struct Model {
    inodes: BTreeMap<Ino, Inode>,
    next_ino: Ino,
    /// Open files by slot. A step refers to an open file by its slot.
    pub(crate) handles: BTreeMap<usize, Handle>,
    pub(crate) behaviour: FsBehaviour,
}

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXEC: u32 = 1;

impl Inode {
    pub(crate) fn new(kind: Kind, mode: u32, cred: Cred) -> Inode {
        Inode {
            nlink: if matches!(kind, Kind::Dir(_)) { 2 } else { 1 },
            kind,
            mode,
            uid: cred.0,
            gid: cred.0,
            xattrs: BTreeMap::new(),
            mtime: None,
            flocks: BTreeMap::new(),
            fcntls: BTreeMap::new(),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir(_))
    }

    pub(crate) fn is_symlink(&self) -> bool {
        matches!(self.kind, Kind::Symlink(_))
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// Whether the mode grants the access. Root may do everything except execute a file without any
    /// execute bit.
    pub(crate) fn permits(&self, cred: Cred, want: u32) -> bool {
        if cred.0 == 0 {
            return self.is_dir() || want & EXEC == 0 || self.mode & 0o111 != 0;
        }
        let shift = match () {
            () if self.uid == cred.0 => 6,
            () if self.gid == cred.0 => 3,
            () => 0,
        };
        (self.mode >> shift) & want == want
    }

    /// Whether the user is the owner or root.
    pub(crate) fn may_act_as_owner(&self, cred: Cred) -> bool {
        cred.0 == 0 || cred.0 == self.uid
    }
}

/// `Ok` if the condition holds, otherwise the error.
pub(crate) fn ensure(condition: bool, error: Errno) -> Result<(), Errno> {
    if condition { Ok(()) } else { Err(error) }
}

impl Model {
    pub(crate) fn new(behaviour: FsBehaviour) -> Model {
        let root = Inode::new(Kind::Dir(BTreeMap::new()), 0o777, Cred(0));
        Model {
            inodes: BTreeMap::from([(ROOT, root)]),
            next_ino: ROOT + 1,
            handles: BTreeMap::new(),
            behaviour,
        }
    }

    pub(crate) fn inode(&self, ino: Ino) -> &Inode {
        &self.inodes[&ino]
    }

    pub(crate) fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        self.inodes.get_mut(&ino).unwrap()
    }

    pub(crate) fn entries(&self, dir: Ino) -> &BTreeMap<String, Ino> {
        match &self.inode(dir).kind {
            Kind::Dir(entries) => entries,
            other => panic!("not a directory: {other:?}"),
        }
    }

    fn entries_mut(&mut self, dir: Ino) -> &mut BTreeMap<String, Ino> {
        let inode = self.inode_mut(dir);
        inode.mtime = None;
        match &mut inode.kind {
            Kind::Dir(entries) => entries,
            other => panic!("not a directory: {other:?}"),
        }
    }

    /// Resolves a path; the last name need not exist.
    pub(crate) fn walk(&self, cred: Cred, path: &str, follow: bool) -> Result<Lookup, Errno> {
        let parts = |p: &str| p.split('/').map(str::to_owned).collect::<Vec<_>>();
        let mut pending: VecDeque<String> = parts(path).into();
        let (mut dir, mut links) = (ROOT, 0);
        loop {
            let name = pending.pop_front().ok_or(Errno::NOENT)?;
            ensure(self.inode(dir).is_dir(), Errno::NOTDIR)?;
            ensure(self.inode(dir).permits(cred, EXEC), Errno::ACCESS)?;
            let ino = match name.as_str() {
                "." => Some(dir),
                name => self.entries(dir).get(name).copied(),
            };
            let last = pending.is_empty();
            match ino {
                Some(ino) if self.inode(ino).is_symlink() && (follow || !last) => {
                    links += 1;
                    ensure(links <= LINKS_MAX, Errno::LOOP)?;
                    if let Kind::Symlink(target) = &self.inode(ino).kind {
                        parts(target)
                            .into_iter()
                            .rev()
                            .for_each(|p| pending.push_front(p));
                    }
                }
                ino if last => return Ok(Lookup { dir, name, ino }),
                Some(ino) => dir = ino,
                None => return Err(Errno::NOENT),
            }
        }
    }

    /// Resolves a path to an existing inode.
    pub(crate) fn find(&self, cred: Cred, path: &str, follow: bool) -> Result<Ino, Errno> {
        self.walk(cred, path, follow)?.ino.ok_or(Errno::NOENT)
    }

    /// Whether the user may create an entry in a directory.
    pub(crate) fn may_create(&self, cred: Cred, dir: Ino) -> Result<(), Errno> {
        ensure(self.inode(dir).permits(cred, WRITE | EXEC), Errno::ACCESS)
    }

    /// Whether the user may remove an entry; `as_dir` if the operation expects a directory.
    pub(crate) fn may_delete(&self, cred: Cred, dir: Ino, victim: Ino, as_dir: bool) -> Result<(), Errno> {
        self.may_create(cred, dir)?;
        let (above, victim) = (self.inode(dir), self.inode(victim));
        let sticky = above.mode & 0o1000 != 0;
        ensure(
            !sticky || victim.may_act_as_owner(cred) || above.may_act_as_owner(cred),
            Errno::PERM,
        )?;
        match (as_dir, victim.is_dir()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            _ => Ok(()),
        }
    }

    /// Creates an inode and its directory entry.
    pub(crate) fn create_inode(&mut self, place: &Lookup, inode: Inode) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        if inode.is_dir() {
            self.inode_mut(place.dir).nlink += 1;
        }
        self.inodes.insert(ino, inode);
        self.entries_mut(place.dir).insert(place.name.clone(), ino);
        ino
    }

    /// Adds an entry for an existing inode, without changing the inode's link count.
    pub(crate) fn insert_entry(&mut self, dir: Ino, name: &str, ino: Ino) {
        if self.inode(ino).is_dir() {
            self.inode_mut(dir).nlink += 1;
        }
        self.entries_mut(dir).insert(name.to_owned(), ino);
    }

    /// Removes an entry, without changing the inode's link count.
    pub(crate) fn remove_entry(&mut self, dir: Ino, name: &str) {
        let ino = self.entries_mut(dir).remove(name).unwrap();
        if self.inode(ino).is_dir() {
            self.inode_mut(dir).nlink -= 1;
        }
    }

    /// Removes one link, and the inode if it has neither a link nor an open file.
    pub(crate) fn drop_link(&mut self, ino: Ino) {
        let inode = self.inode_mut(ino);
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink - 1 };
        self.drop_unused(ino);
    }

    pub(crate) fn drop_unused(&mut self, ino: Ino) {
        if self.inode(ino).nlink == 0 && !self.handles.values().any(|h| h.ino == ino) {
            self.inodes.remove(&ino);
        }
    }

    /// Releases the `fcntl` locks of a mount's lock owner on a file, as each close of the file
    /// does.
    pub(crate) fn release_fcntl_locks(&mut self, mount: usize, ino: Ino) {
        let owner = self.lock_owner(mount);
        self.inode_mut(ino).fcntls.remove(&owner);
    }

    pub(crate) fn lock_owner(&self, mount: usize) -> usize {
        if self.behaviour.owner_per_mount { mount } else { 0 }
    }

    /// Whether `below` is `above` itself or lies below it.
    pub(crate) fn is_above(&self, above: Ino, below: Ino) -> bool {
        above == below
            || (self.inode(above).is_dir()
                && self.entries(above).values().any(|&ino| self.is_above(ino, below)))
    }

    /// All paths, beginning with the root.
    pub(crate) fn tree(&self) -> Vec<(String, Ino)> {
        let mut paths = vec![(".".to_owned(), ROOT)];
        let mut index = 0;
        while let Some((path, ino)) = paths.get(index).cloned() {
            if self.inode(ino).is_dir() {
                let below = self.entries(ino).iter();
                paths.extend(below.map(|(name, ino)| (format!("{path}/{name}"), *ino)));
            }
            index += 1;
        }
        paths
    }
}
