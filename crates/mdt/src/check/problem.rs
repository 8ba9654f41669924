//! The kinds of problems in an MDT's store, and their descriptions.

use bytes::Bytes;
use osd::check::Finding;
use wire::{Fid, LuSeqRange};

use crate::{
    fid2path,
    store::{Entry, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, Store, keys},
};

/// A part of an inode's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodePart {
    /// The layout.
    Layout,
    /// The access ACL.
    AccessAcl,
    /// The default ACL.
    DefaultAcl,
    /// The default layout over MDTs.
    DefaultDirLayout,
}

/// A problem in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A malformed record.
    BadRecord {
        /// The record's key.
        key: Bytes,
        /// The kind of the record.
        record: &'static str,
        /// The reason.
        reason: String,
    },
    /// A record of an unknown kind.
    UnknownRecord {
        /// The record's key.
        key: Bytes,
    },
    /// The root directory is missing.
    NoRoot,
    /// Entries below a FID that is no directory.
    EntriesWithoutDirectory {
        /// The FID.
        dir: Fid,
        /// The type of the inode with this FID; `None` if it is missing.
        kind: Option<u32>,
    },
    /// An invalid name.
    BadName {
        /// The directory.
        dir: Fid,
        /// The entry's key.
        key: Bytes,
        /// The reason.
        reason: String,
    },
    /// An entry with a key that does not match the hash of its name.
    MisplacedEntry {
        /// The directory.
        dir: Fid,
        /// The entry's key.
        key: Bytes,
        /// The entry.
        entry: Entry,
    },
    /// A name leads to a missing inode.
    DanglingName {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// The missing inode.
        fid: Fid,
    },
    /// An entry has another type than its inode.
    WrongType {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// The entry.
        entry: Entry,
        /// The inode's type.
        kind: u32,
    },
    /// A directory has more than one name, or the root has a name.
    ExtraName {
        /// The directory with the extra name.
        fid: Fid,
        /// The directory that contains the extra name.
        dir: Fid,
        /// The name.
        name: Bytes,
    },
    /// A directory is its own ancestor.
    DirectoryCycle {
        /// The directory.
        fid: Fid,
        /// The directory that contains its name.
        dir: Fid,
        /// Its name.
        name: Bytes,
    },
    /// An inode has no name, although its link count is not 0 or it has entries.
    UnnamedInode {
        /// The inode.
        fid: Fid,
        /// Its type.
        kind: u32,
        /// Its link count.
        nlink: u32,
    },
    /// An inode without names, links and entries has no orphan record, so it would never be
    /// destroyed.
    MissingOrphanRecord {
        /// The inode.
        fid: Fid,
    },
    /// An orphan record of a missing inode, or of one with names.
    StaleOrphanRecord {
        /// The FID of the orphan record.
        fid: Fid,
        /// Whether the inode exists.
        exists: bool,
    },
    /// The stored link count differs from the number of links found.
    WrongLinkCount {
        /// The inode.
        fid: Fid,
        /// The stored link count.
        stored: u32,
        /// The expected link count: for a directory 2 and one per subdirectory, else one per name.
        expected: u32,
    },
    /// The links recorded in the inode differ from the names that lead to it.
    WrongLinks {
        /// The inode.
        fid: Fid,
        /// The names that lead to it.
        names: Vec<(Fid, Bytes)>,
    },
    /// Extended attributes of a missing inode.
    XattrsWithoutInode {
        /// The FID of the missing inode.
        fid: Fid,
    },
    /// An inode has extended attributes, but not the flag for them.
    UnflaggedXattrs {
        /// The inode.
        fid: Fid,
    },
    /// Data on the MDT of a missing inode, or of one without a part on the MDT.
    DataWithoutFile {
        /// The FID.
        fid: Fid,
    },
    /// The attributes of a file's data on the MDT do not match its blocks.
    WrongData {
        /// The file.
        fid: Fid,
        /// The reason.
        reason: String,
    },
    /// A part of an inode's record is invalid.
    BadPart {
        /// The inode.
        fid: Fid,
        /// The part.
        part: InodePart,
        /// The reason.
        reason: String,
    },
    /// The FLDB does not list an inode's sequence as this MDT's.
    UnknownSequence {
        /// The sequence.
        seq: u64,
        /// The range of the FLDB that contains the sequence, if it belongs to another target.
        owner: Option<LuSeqRange>,
    },
    /// An inode's sequence is in the part of the super-sequence that is not allocated yet.
    UnallocatedSequence {
        /// The sequence.
        seq: u64,
    },
}

/// The name of a file type (`S_IFMT`), with its article.
fn kind_name(kind: u32) -> &'static str {
    match kind {
        S_IFDIR => "a directory",
        S_IFREG => "a file",
        S_IFLNK => "a symbolic link",
        S_IFIFO => "a FIFO",
        S_IFCHR => "a character device",
        S_IFBLK => "a block device",
        S_IFSOCK => "a socket",
        _ => "an inode of unknown type",
    }
}

/// The bytes as text in one line: control characters are escaped.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// The path of an inode by its first recorded link; empty if there is none.
pub async fn show_path(store: &Store, fid: Fid) -> String {
    match fid2path::path(store, fid, 0, Fid::ROOT).await {
        Ok(part) if part.top.is_root() => format!("/{}", escape(&part.path)),
        _ => String::new(),
    }
}

async fn show_name(store: &Store, dir: Fid, name: &[u8]) -> String {
    let path = show_path(store, dir).await;
    match path.as_str() {
        "" => format!("{dir}/{}", escape(name)),
        "/" => format!("/{}", escape(name)),
        path => format!("{path}/{}", escape(name)),
    }
}

async fn show_names(store: &Store, names: &[(Fid, Bytes)]) -> String {
    const MAX: usize = 4;
    let mut shown = Vec::new();
    for (dir, name) in names.iter().take(MAX) {
        shown.push(show_name(store, *dir, name).await);
    }
    if names.len() > MAX {
        shown.push(format!("{} more", names.len() - MAX));
    }
    match shown.is_empty() {
        true => "none".into(),
        false => shown.join(", "),
    }
}

impl Problem {
    /// Describes the problem.
    pub async fn finding(&self, store: &Store) -> Finding {
        let finding =
            |kind, fid: Option<Fid>, place: String, expected: String, found: String, repair| Finding {
                kind,
                fid,
                place,
                expected,
                found,
                repair: Some(repair),
            };
        let name_of = |key: &Bytes| keys::entry_name(key).map(|(_, n)| n).unwrap_or_default();
        match self {
            Problem::BadRecord { key, record, reason } => finding(
                "unreadable record",
                keys::fid(key),
                format!("record {}", escape(&key.escape_ascii().collect::<Vec<_>>())),
                format!("a record of kind: {record}"),
                reason.clone(),
                "removes the record",
            ),
            Problem::UnknownRecord { key } => Finding {
                repair: None,
                ..finding(
                    "unknown record",
                    None,
                    format!("record {}", escape(&key.escape_ascii().collect::<Vec<_>>())),
                    "a record kind that this version knows".into(),
                    "an unknown kind".into(),
                    "",
                )
            },
            Problem::NoRoot => finding(
                "no root directory",
                Some(Fid::ROOT),
                "/".into(),
                "a directory".into(),
                "no inode".into(),
                "creates the root directory",
            ),
            Problem::EntriesWithoutDirectory { dir, kind: None } => finding(
                "missing directory inode",
                Some(*dir),
                String::new(),
                "the inode of a directory that has entries".into(),
                "no inode".into(),
                "creates it in lost+found",
            ),
            Problem::EntriesWithoutDirectory {
                dir,
                kind: Some(kind),
            } => finding(
                "entries below a non-directory",
                Some(*dir),
                show_path(store, *dir).await,
                "no entries, since it is not a directory".into(),
                format!("entries below {}", kind_name(*kind)),
                "removes the entries",
            ),
            Problem::BadName { dir, key, reason } => finding(
                "illegal name",
                Some(*dir),
                show_name(store, *dir, &name_of(key)).await,
                "a valid file name".into(),
                reason.clone(),
                "removes the name",
            ),
            Problem::MisplacedEntry { dir, key, .. } => finding(
                "misplaced name",
                Some(*dir),
                show_name(store, *dir, &name_of(key)).await,
                "an entry with the hash of its name".into(),
                "another hash".into(),
                "moves the entry",
            ),
            Problem::DanglingName { dir, name, fid } => finding(
                "dangling name",
                Some(*fid),
                show_name(store, *dir, name).await,
                "an inode".into(),
                "no inode".into(),
                "removes the name",
            ),
            Problem::WrongType {
                dir,
                name,
                entry,
                kind,
            } => finding(
                "wrong type",
                Some(entry.fid),
                show_name(store, *dir, name).await,
                format!("an entry for {}", kind_name(*kind)),
                kind_name(entry.kind).into(),
                "sets the entry's type to the inode's",
            ),
            Problem::ExtraName { fid, dir, name } => finding(
                "second name of a directory",
                Some(*fid),
                show_name(store, *dir, name).await,
                format!("only the name {}", show_path(store, *fid).await),
                "a second name".into(),
                "removes the name",
            ),
            Problem::DirectoryCycle { fid, dir, name } => finding(
                "directory cycle",
                Some(*fid),
                show_name(store, *dir, name).await,
                "a directory below the root".into(),
                "a loop".into(),
                "removes the name; the directory goes to lost+found",
            ),
            Problem::UnnamedInode { fid, kind, nlink } => finding(
                "no name",
                Some(*fid),
                show_path(store, *fid).await,
                format!("a name of {}", kind_name(*kind)),
                format!("no name, link count {nlink}"),
                "adds a name in lost+found",
            ),
            Problem::MissingOrphanRecord { fid } => finding(
                "unreferenced inode",
                Some(*fid),
                show_path(store, *fid).await,
                "an orphan record".into(),
                "no name, no link and no orphan record".into(),
                "destroys the inode",
            ),
            Problem::StaleOrphanRecord { fid, exists } => finding(
                "stale orphan record",
                Some(*fid),
                show_path(store, *fid).await,
                "an orphan record of an inode without names".into(),
                if *exists {
                    "an inode with names"
                } else {
                    "no inode"
                }
                .into(),
                "removes the orphan record",
            ),
            Problem::WrongLinkCount {
                fid,
                stored,
                expected,
            } => finding(
                "wrong link count",
                Some(*fid),
                show_path(store, *fid).await,
                format!("link count {expected}"),
                stored.to_string(),
                "sets the link count",
            ),
            Problem::WrongLinks { fid, names } => finding(
                "wrong links",
                Some(*fid),
                show_names(store, names).await,
                "an inode that records these names".into(),
                "it records other names".into(),
                "records the names in the inode",
            ),
            Problem::XattrsWithoutInode { fid } => finding(
                "extended attributes without an inode",
                Some(*fid),
                String::new(),
                "the inode of these extended attributes".into(),
                "no inode".into(),
                "removes the attributes",
            ),
            Problem::UnflaggedXattrs { fid } => finding(
                "extended attributes without the flag",
                Some(*fid),
                show_path(store, *fid).await,
                "an inode with the flag for extended attributes".into(),
                "the flag is not set".into(),
                "sets the flag",
            ),
            Problem::DataWithoutFile { fid } => finding(
                "data without a file",
                Some(*fid),
                show_path(store, *fid).await,
                "a file with a part on the MDT".into(),
                "no such file".into(),
                "removes the data",
            ),
            Problem::WrongData { fid, reason } => finding(
                "wrong size of data",
                Some(*fid),
                show_path(store, *fid).await,
                "a size and space that match the data".into(),
                reason.clone(),
                "sets size and space; lost blocks read as zeros: restore the file",
            ),
            Problem::BadPart { fid, part, reason } => {
                let (problem, expected, repair) = match part {
                    InodePart::Layout => ("bad layout", "a layout of this file", "removes the layout"),
                    InodePart::AccessAcl => ("bad ACL", "an access ACL", "removes the ACL; the mode applies"),
                    InodePart::DefaultAcl => ("bad ACL", "a default ACL", "removes the ACL"),
                    InodePart::DefaultDirLayout => (
                        "bad default layout",
                        "a default layout of this directory over MDTs",
                        "removes the default layout",
                    ),
                };
                finding(
                    problem,
                    Some(*fid),
                    show_path(store, *fid).await,
                    expected.into(),
                    reason.clone(),
                    repair,
                )
            }
            Problem::UnknownSequence { seq, owner } => {
                let found = match owner {
                    None => "no range in the FLDB".to_owned(),
                    Some(r) => format!("a range of target {} (flags {:#x})", r.lsr_index, r.lsr_flags),
                };
                let unknown = finding(
                    "unknown sequence",
                    None,
                    format!("sequence {seq:#x}"),
                    "a range of this target that contains the inode's sequence".into(),
                    found,
                    "adds the sequence to the FLDB as this target's",
                );
                match owner {
                    None => unknown,
                    Some(_) => Finding {
                        repair: None,
                        ..unknown
                    },
                }
            }
            Problem::UnallocatedSequence { seq } => finding(
                "unallocated sequence in use",
                None,
                format!("sequence {seq:#x}"),
                "inodes only in allocated sequences".into(),
                "the sequence is not allocated yet".into(),
                "marks all sequences up to it as allocated",
            ),
        }
    }
}
