//! What can be wrong in the store, and how each is told.

use bytes::Bytes;
use osd::check::Finding;
use wire::{Fid, LuSeqRange};

use crate::{
    fid2path,
    store::{Entry, S_IFDIR, S_IFLNK, S_IFREG, Store, keys},
};

/// A part of an inode's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The layout.
    Layout,
    /// The ACL that decides about access.
    AccessAcl,
    /// The ACL that new children begin with.
    DefaultAcl,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A record cannot be read.
    BadRecord {
        /// Its key.
        key: Bytes,
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        why: String,
    },
    /// A record of a kind that there is not.
    UnknownRecord {
        /// Its key.
        key: Bytes,
    },
    /// There is no root directory.
    NoRoot,
    /// Names are in a directory that is none.
    NoDirectory {
        /// Where they are.
        dir: Fid,
        /// What that is instead: a type, or nothing at all.
        is: Option<u32>,
    },
    /// A name that cannot be.
    BadName {
        /// Its directory.
        dir: Fid,
        /// The entry's key.
        key: Bytes,
        /// What is wrong with it.
        why: String,
    },
    /// An entry that is not where its name is looked for.
    Misplaced {
        /// Its directory.
        dir: Fid,
        /// The entry's key.
        key: Bytes,
        /// The entry.
        entry: Entry,
    },
    /// A name leads to no inode.
    Dangling {
        /// Its directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// Where it leads.
        fid: Fid,
    },
    /// A name says another type than the inode's.
    WrongType {
        /// Its directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// The entry.
        entry: Entry,
        /// The inode's type.
        is: u32,
    },
    /// A directory has a name that is one too many.
    ExtraName {
        /// The directory that has it.
        fid: Fid,
        /// Where the name is.
        dir: Fid,
        /// The name.
        name: Bytes,
    },
    /// A directory is below itself.
    Loop {
        /// The directory.
        fid: Fid,
        /// Where its name is.
        dir: Fid,
        /// Its name.
        name: Bytes,
    },
    /// An inode has no name.
    NoName {
        /// The inode.
        fid: Fid,
        /// Its type.
        is: u32,
        /// Its links.
        nlink: u32,
    },
    /// An inode was removed, and nothing will destroy it.
    Forgotten {
        /// The inode.
        fid: Fid,
    },
    /// What is noted as removed while open is not.
    NoOrphan {
        /// What is noted.
        fid: Fid,
        /// Whether it is there, with names.
        exists: bool,
    },
    /// The links are not as many as the names.
    WrongCount {
        /// The inode.
        fid: Fid,
        /// Its links.
        stored: u32,
        /// What they should be.
        expected: u32,
    },
    /// The inode knows other names than those that lead to it.
    WrongLinks {
        /// The inode.
        fid: Fid,
        /// The names that lead to it.
        names: Vec<(Fid, Bytes)>,
    },
    /// Extended attributes of no inode.
    LostXattrs {
        /// Whose they were.
        fid: Fid,
    },
    /// Extended attributes of an inode that says that it has none.
    HiddenXattrs {
        /// The inode.
        fid: Fid,
    },
    /// A part of an inode cannot be what it should be.
    BadPart {
        /// The inode.
        fid: Fid,
        /// Which part.
        part: Part,
        /// What is wrong.
        why: String,
    },
    /// An inode is of a sequence that is not known to be this target's.
    UnknownSequence {
        /// The sequence.
        seq: u64,
        /// Whose it is.
        whose: Option<LuSeqRange>,
    },
    /// An inode is of a sequence that was not handed out.
    SequenceNotGiven {
        /// The sequence.
        seq: u64,
    },
}

/// A type as people call it.
fn kind(mode: u32) -> &'static str {
    match mode {
        S_IFDIR => "a directory",
        S_IFREG => "a file",
        S_IFLNK => "a symbolic link",
        0o010000 => "a FIFO",
        0o020000 => "a character device",
        0o060000 => "a block device",
        0o140000 => "a socket",
        _ => "of no known type",
    }
}

/// Text that fits into a line, whatever the bytes are.
fn show(bytes: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// The path of an inode as it knows it itself; without one, nothing.
pub fn show_path(store: &Store, fid: Fid) -> String {
    match fid2path::path(store, fid, 0, Fid::ROOT) {
        Ok((path, _)) => format!("/{}", show(&path)),
        Err(_) => String::new(),
    }
}

fn show_name(store: &Store, dir: Fid, name: &[u8]) -> String {
    let path = show_path(store, dir);
    match path.as_str() {
        "" => format!("{dir}/{}", show(name)),
        "/" => format!("/{}", show(name)),
        path => format!("{path}/{}", show(name)),
    }
}

fn show_names(store: &Store, names: &[(Fid, Bytes)]) -> String {
    const MAX: usize = 4;
    let shown = names
        .iter()
        .take(MAX)
        .map(|(dir, name)| show_name(store, *dir, name));
    let mut shown: Vec<String> = shown.collect();
    if names.len() > MAX {
        shown.push(format!("{} more", names.len() - MAX));
    }
    match shown.is_empty() {
        true => "none".into(),
        false => shown.join(", "),
    }
}

impl Problem {
    /// As it is told.
    pub fn finding(&self, store: &Store) -> Finding {
        let new = |kind, fid: Option<Fid>, place: String, expected: String, found: String, repair| Finding {
            kind,
            fid,
            place,
            expected,
            found,
            repair: Some(repair),
        };
        let at = |fid| show_path(store, fid);
        let name_of = |key: &Bytes| keys::entry_name(key).map(|(_, n)| n).unwrap_or_default();
        match self {
            Problem::BadRecord { key, what, why } => new(
                "unreadable record",
                keys::fid(key),
                format!("record {}", show(&key.escape_ascii().collect::<Vec<_>>())),
                format!("that of {what}"),
                why.clone(),
                "removes it",
            ),
            Problem::UnknownRecord { key } => Finding {
                repair: None,
                ..new(
                    "unknown record",
                    None,
                    format!("record {}", show(&key.escape_ascii().collect::<Vec<_>>())),
                    "records that this version writes".into(),
                    "another".into(),
                    "",
                )
            },
            Problem::NoRoot => new(
                "no root directory",
                Some(Fid::ROOT),
                "/".into(),
                "a directory".into(),
                "no inode".into(),
                "makes it",
            ),
            Problem::NoDirectory { dir, is: None } => new(
                "lost directory",
                Some(*dir),
                String::new(),
                "the inode of a directory that names are in".into(),
                "none".into(),
                "makes it, in lost+found",
            ),
            Problem::NoDirectory { dir, is: Some(is) } => new(
                "names in no directory",
                Some(*dir),
                at(*dir),
                "no names, since it is no directory".into(),
                format!("names in what is {}", kind(*is)),
                "removes the names",
            ),
            Problem::BadName { dir, key, why } => new(
                "illegal name",
                Some(*dir),
                show_name(store, *dir, &name_of(key)),
                "a name that a file can have".into(),
                why.clone(),
                "removes the name",
            ),
            Problem::Misplaced { dir, key, .. } => new(
                "misplaced name",
                Some(*dir),
                show_name(store, *dir, &name_of(key)),
                "an entry under its name's hash".into(),
                "under another".into(),
                "moves it there",
            ),
            Problem::Dangling { dir, name, fid } => new(
                "dangling name",
                Some(*fid),
                show_name(store, *dir, name),
                "an inode".into(),
                "none".into(),
                "removes the name",
            ),
            Problem::WrongType { dir, name, entry, is } => new(
                "wrong type",
                Some(entry.fid),
                show_name(store, *dir, name),
                format!("a name of what is {}", kind(*is)),
                kind(entry.kind).into(),
                "sets the name's type to the inode's",
            ),
            Problem::ExtraName { fid, dir, name } => new(
                "second name of a directory",
                Some(*fid),
                show_name(store, *dir, name),
                format!("only {}", at(*fid)),
                "a further name".into(),
                "removes the name",
            ),
            Problem::Loop { fid, dir, name } => new(
                "directory below itself",
                Some(*fid),
                show_name(store, *dir, name),
                "a directory below the root".into(),
                "a loop".into(),
                "removes the name; the directory goes to lost+found",
            ),
            Problem::NoName { fid, is, nlink } => new(
                "no name",
                Some(*fid),
                at(*fid),
                format!("a name of what is {}", kind(*is)),
                format!("none, and {nlink} links"),
                "names it in lost+found",
            ),
            Problem::Forgotten { fid } => new(
                "forgotten inode",
                Some(*fid),
                at(*fid),
                "a note that it was removed while open".into(),
                "no name, no link and no note".into(),
                "destroys it",
            ),
            Problem::NoOrphan { fid, exists } => new(
                "wrong orphan",
                Some(*fid),
                at(*fid),
                "an inode without names, which is noted as removed while open".into(),
                if *exists { "one with names" } else { "no inode" }.into(),
                "removes the note",
            ),
            Problem::WrongCount {
                fid,
                stored,
                expected,
            } => new(
                "wrong link count",
                Some(*fid),
                at(*fid),
                format!("{expected} links"),
                stored.to_string(),
                "sets it",
            ),
            Problem::WrongLinks { fid, names } => new(
                "wrong links",
                Some(*fid),
                show_names(store, names),
                "an inode that knows these names".into(),
                "it knows others".into(),
                "writes them into it",
            ),
            Problem::LostXattrs { fid } => new(
                "lost attributes",
                Some(*fid),
                String::new(),
                "an inode of these extended attributes".into(),
                "none".into(),
                "removes them",
            ),
            Problem::HiddenXattrs { fid } => new(
                "hidden attributes",
                Some(*fid),
                at(*fid),
                "an inode that says that it has extended attributes".into(),
                "it says that it has none".into(),
                "makes it say so",
            ),
            Problem::BadPart { fid, part, why } => {
                let (what, expected, repair) = match part {
                    Part::Layout => ("bad layout", "a layout of this file", "takes it away"),
                    Part::AccessAcl => ("bad ACL", "an access ACL", "takes it away: the mode decides"),
                    Part::DefaultAcl => ("bad ACL", "a default ACL", "takes it away"),
                };
                new(what, Some(*fid), at(*fid), expected.into(), why.clone(), repair)
            }
            Problem::UnknownSequence { seq, whose } => {
                let found = match whose {
                    None => "no range in the location database".to_owned(),
                    Some(r) => format!("one of target {} (flags {:#x})", r.lsr_index, r.lsr_flags),
                };
                let finding = new(
                    "unknown sequence",
                    None,
                    format!("sequence {seq:#x}"),
                    "a range of this target for the sequence of an inode".into(),
                    found,
                    "notes the sequence as this target's",
                );
                match whose {
                    None => finding,
                    Some(_) => Finding {
                        repair: None,
                        ..finding
                    },
                }
            }
            Problem::SequenceNotGiven { seq } => new(
                "sequence in use twice",
                None,
                format!("sequence {seq:#x}"),
                "inodes only of sequences that were handed out".into(),
                "it is still to be handed out".into(),
                "hands out none up to it any more",
            ),
        }
    }
}
