//! Attributes of a file: as the metadata target returns them, and merged with the size and times of
//! the file's objects.

use crate::layout::FileLayout;
use bytes::Bytes;
use std::sync::Arc;
use wire::striping::LmvLayout;
use wire::{
    Fid, HasTimes, LMV_MAGIC_STRIPE, LMV_USER_MAGIC, LmvUserMdV1, MdtBody, OBD_MD_FLACL, OBD_MD_FLBLOCKS,
    OBD_MD_FLBTIME, OBD_MD_FLCTIME, OBD_MD_FLEASIZE, OBD_MD_FLSIZE, OBD_MD_MEA, Precision, Time, Times,
    WireStruct,
};

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;

/// Preferred I/O size in a stat (`st_blksize`), in bytes.
pub const BLKSIZE: u32 = 4 << 20;

/// The attributes that a stat returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// FID of the file.
    pub fid: Fid,
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Device number of a special file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Time of the last read that the mount's rule counts ([`Atime`](crate::Atime)), or a time that
    /// a program set.
    pub atime: Time,
    /// Time of the last change of the data, or a time that a program set.
    pub mtime: Time,
    /// Time of the last change of data or attributes.
    pub ctime: Time,
    /// Time of creation; zero if unknown.
    pub btime: Time,
}

impl Attr {
    /// Whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// The access, modification and change times.
    pub(crate) fn times(&self) -> Times {
        Times {
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }

    /// Whether the file is no directory and has more than one name.
    pub(crate) fn has_hard_links(&self) -> bool {
        self.nlink > 1 && !self.is_dir()
    }

    /// Whether the file is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }

    /// Whether the file is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }
}

/// Size and times merged from a file's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataAttr {
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Access, modification and change time.
    pub times: Times,
}

/// The attributes of a file from a reply of the metadata target.
#[derive(Clone, Debug)]
pub(crate) struct MdAttr {
    pub(crate) attr: Attr,
    /// A regular file's layout; `None` if the reply had no usable one.
    pub(crate) layout: Option<Arc<FileLayout>>,
    /// The access ACL in the format of `system.posix_acl_access`. `None`: not in the reply; empty:
    /// the file has none.
    pub(crate) acl: Option<Bytes>,
    /// How a directory's names are distributed over MDTs.
    pub(crate) striping: Striping,
    /// The layout that a directory gives to its new subdirectories.
    pub(crate) default_dir_layout: Option<Arc<LmvUserMdV1>>,
}

/// How a directory's names are distributed over metadata targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Striping {
    /// All names are in the directory itself.
    #[default]
    None,
    /// The names are in stripes. The layout is usable ([`LmvLayout::is_usable`]).
    Striped(Arc<LmvLayout>),
    /// The layout is of an unknown kind or foreign, so no client can find the names.
    Unusable,
}

impl Striping {
    /// Parses a directory's layout from a reply.
    pub(crate) fn parse(layout: &[u8]) -> Striping {
        match LmvLayout::parse(layout) {
            Ok(mut layout) => {
                layout.stripes.truncate(layout.head.lmv_stripe_count as usize);
                match () {
                    () if layout.is_usable() => Striping::Striped(Arc::new(layout)),
                    // The attribute of a stripe itself, or of a directory without stripes.
                    () if layout.head.lmv_magic == LMV_MAGIC_STRIPE => Striping::None,
                    () if layout.head.lmv_stripe_count == 0 => Striping::None,
                    () => Striping::Unusable,
                }
            }
            Err(_) => Striping::Unusable,
        }
    }
}

/// Parses a default directory layout from a reply; `None`: there is none, or it is of an unknown
/// kind.
pub(crate) fn parse_default(layout: &[u8]) -> Option<Arc<LmvUserMdV1>> {
    let layout = LmvUserMdV1::from_bytes(layout.get(..LmvUserMdV1::SIZE)?).ok()?;
    (layout.lum_magic == LMV_USER_MAGIC).then(|| Arc::new(layout))
}

impl MdAttr {
    /// Parses the body, layout buffer and ACL buffer of a reply. Ignores an unusable layout: the
    /// operation that needs the layout requests it again and reports the error. A regular file with
    /// a size but no layout in the reply has no objects.
    pub(crate) fn from_reply(body: &MdtBody, md: &Bytes, acl: &Bytes, precision: Precision) -> MdAttr {
        let valid = body.mbo_valid;
        let times = body.times().at(precision);
        let size_known = valid & OBD_MD_FLSIZE != 0;
        let attr = Attr {
            fid: body.mbo_fid1,
            mode: body.mbo_mode,
            uid: body.mbo_uid,
            gid: body.mbo_gid,
            nlink: body.mbo_nlink,
            rdev: body.mbo_rdev,
            size: if size_known { body.mbo_size } else { 0 },
            blocks: if valid & OBD_MD_FLBLOCKS != 0 {
                body.mbo_blocks
            } else {
                0
            },
            atime: times.atime,
            mtime: times.mtime,
            ctime: if valid & OBD_MD_FLCTIME != 0 {
                times.ctime
            } else {
                Time::default()
            },
            btime: if valid & OBD_MD_FLBTIME != 0 {
                precision.of(body.btime())
            } else {
                Time::default()
            },
        };
        let layout = if attr.is_file() && valid & OBD_MD_FLEASIZE != 0 {
            let len = (body.mbo_eadatasize as usize).min(md.len());
            FileLayout::parse(md.slice(..len)).ok().map(Arc::new)
        } else if attr.is_file() && valid & OBD_MD_FLSIZE != 0 {
            Some(Arc::new(FileLayout::empty()))
        } else {
            None
        };
        let striping = match attr.is_dir() && valid & OBD_MD_MEA != 0 && body.mbo_eadatasize > 0 {
            true => Striping::parse(&md[..(body.mbo_eadatasize as usize).min(md.len())]),
            false => Striping::None,
        };
        // Copied, because a slice would keep the whole reply in memory.
        let acl_len = (body.mbo_aclsize as usize).min(acl.len());
        let acl = (valid & OBD_MD_FLACL != 0).then(|| Bytes::copy_from_slice(&acl.slice(..acl_len)));
        MdAttr {
            attr,
            layout,
            acl,
            striping,
            default_dir_layout: None,
        }
    }

    /// Merges the size, blocks and times of the objects into the metadata target's attributes.
    pub(crate) fn with_data(&self, data: &DataAttr) -> Attr {
        let mut attr = self.attr.clone();
        attr.size = data.size;
        attr.blocks = data.blocks;
        let times = attr.times().with_data(data.times);
        (attr.atime, attr.mtime, attr.ctime) = (times.atime, times.mtime, times.ctime);
        attr
    }
}

/// A time in a [`SetAttr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    At(Time),
}

impl SetTime {
    /// The time to set, if the operation happens at `now`.
    pub(crate) fn resolve(self, now: Time) -> Time {
        match self {
            SetTime::Now => now,
            SetTime::At(t) => t,
        }
    }
}

/// A change of attributes. `None`: the attribute stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncate, or extend with zeros.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Drops the set-user-ID bit, and the set-group-ID bit if the file is executable by its group
    /// or the caller is not a member of the group.
    pub kill_priv: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{DataAttr, MdAttr, S_IFDIR, S_IFREG};
    use bytes::Bytes;
    use wire::{
        MdtBody, OBD_MD_FLACL, OBD_MD_FLBLOCKS, OBD_MD_FLCTIME, OBD_MD_FLSIZE, Precision, Time, Times,
    };

    #[test]
    fn a_directory_has_its_size_from_the_reply_and_no_layout() {
        let body = MdtBody {
            mbo_mode: S_IFDIR | 0o755,
            mbo_size: 4096,
            mbo_valid: OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            ..MdtBody::default()
        };
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), Precision::Nanoseconds);
        assert_eq!(md.attr.size, 4096);
        assert!(md.layout.is_none() && md.acl.is_none());
    }

    #[test]
    fn a_file_without_objects_has_an_empty_layout_and_the_size_of_the_reply() {
        let body = MdtBody {
            mbo_mode: S_IFREG,
            mbo_size: 7,
            mbo_valid: OBD_MD_FLSIZE,
            ..MdtBody::default()
        };
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), Precision::Nanoseconds);
        assert!(md.layout.unwrap().is_empty());
        assert_eq!(md.attr.size, 7);
    }

    #[test]
    fn a_claimed_acl_length_is_limited_to_the_buffer() {
        let body = MdtBody {
            mbo_mode: S_IFREG,
            mbo_aclsize: 999,
            mbo_valid: OBD_MD_FLACL,
            ..MdtBody::default()
        };
        let md = MdAttr::from_reply(
            &body,
            &Bytes::new(),
            &Bytes::from_static(b"acl"),
            Precision::Nanoseconds,
        );
        assert_eq!(&md.acl.unwrap()[..], b"acl");
    }

    #[test]
    fn objects_set_size_and_blocks_and_their_mtime_counts_unless_their_ctime_is_older() {
        let body = MdtBody {
            mbo_mode: S_IFREG,
            mbo_mtime: 4_000_000_000,
            mbo_ctime: 100,
            mbo_valid: OBD_MD_FLCTIME,
            ..MdtBody::default()
        };
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), Precision::Nanoseconds);
        let merge = |mtime, ctime| {
            let times = Times {
                mtime,
                ctime,
                ..Times::default()
            };
            let attr = md.with_data(&DataAttr {
                size: 9,
                blocks: 8,
                times,
            });
            (attr.size, attr.blocks, attr.mtime, attr.ctime)
        };
        let (never, before, after) = (Time::default(), Time::new(99, 7), Time::new(100, 7));
        assert_eq!(merge(after, after), (9, 8, after, after));
        let future = Time::secs(4_000_000_000);
        assert_eq!(merge(before, before), (9, 8, future, Time::secs(100)));
        assert_eq!(merge(never, never), (9, 8, future, Time::secs(100)));
    }

    #[test]
    fn cached_attributes_do_not_pin_the_reply_buffer() {
        let (reply, body) = (
            Bytes::from(vec![1; 4096]),
            MdtBody {
                mbo_mode: S_IFREG,
                mbo_valid: OBD_MD_FLACL,
                mbo_aclsize: 8,
                ..MdtBody::default()
            },
        );
        let md = MdAttr::from_reply(&body, &Bytes::new(), &reply, Precision::Nanoseconds);
        assert_eq!(md.acl.as_deref(), Some(&[1; 8][..]));
        assert!(reply.is_unique());
    }
}
