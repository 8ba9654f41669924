//! The record of an inode: one value with its attributes and the parts that almost every operation
//! needs (layout, links, ACLs, symlink target). So a create is three puts and a getattr one get.
//!
//! `docs/on-disk-format.md` describes the format. Decoded sections are slices of the value, so
//! decoding copies nothing.

use bytes::Bytes;
use wire::{Fid, Reader, Time, WireError, Writer};

use crate::layout;

/// Version of the record's format.
const VERSION: u8 = 2;
/// The previous version, without nanoseconds; still readable.
const VERSION_SECONDS: u8 = 1;

/// The type bits of a mode.
pub const S_IFMT: u32 = 0o170000;
/// Directory.
pub const S_IFDIR: u32 = 0o040000;
/// Character device.
pub const S_IFCHR: u32 = 0o020000;
/// Block device.
pub const S_IFBLK: u32 = 0o060000;
/// FIFO.
pub const S_IFIFO: u32 = 0o010000;
/// Regular file.
pub const S_IFREG: u32 = 0o100000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120000;
/// Set-user-ID.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-ID.
pub const S_ISGID: u32 = 0o2000;
/// Sticky.
pub const S_ISVTX: u32 = 0o1000;

/// `size` of an empty directory; the size shown to users is a multiple of it.
pub const DIR_BLOCK: u64 = 4096;

/// Flag: the inode has records of extended attributes.
const HAS_XATTRS: u8 = 1;
/// Flag: the lazy size is known.
const HAS_SOM: u8 = 2;

// Tags of the record's sections.
const TAG_LOV: u8 = 1;
const TAG_LINKS: u8 = 2;
const TAG_SYMLINK: u8 = 3;
const TAG_ACL_ACCESS: u8 = 4;
const TAG_ACL_DEFAULT: u8 = 5;
const TAG_DEFAULT_LMV: u8 = 6;

/// The ids of a file that the OSTs also store with its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Project id.
    pub projid: u32,
}

/// An inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Project id.
    pub projid: u32,
    /// Link count; a directory has 2, and one more per subdirectory. 0: removed while open.
    pub nlink: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Inode flags (`LUSTRE_*_FL`).
    pub flags: u32,
    /// Size of an inode without objects (symlink, file without a layout). For a directory:
    /// [`DIR_BLOCK`] plus the size of its entries; [`Inode::shown_size`] is the size for users.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// The transaction number of the last change.
    pub version: u64,
    /// The lazy size of a file: size in bytes and number of 512-byte blocks, from closes and
    /// truncations; never authoritative.
    pub som: Option<(u64, u64)>,
    /// Whether the inode has records of extended attributes.
    pub has_xattrs: bool,
    /// A file's layout (`lov_mds_md`) or a directory's default layout (`lov_user_md`); may be
    /// empty.
    pub lov: Bytes,
    /// `trusted.link`: the parents and names.
    pub links: Bytes,
    /// A symlink's target.
    pub symlink: Bytes,
    /// `system.posix_acl_access`.
    pub acl_access: Bytes,
    /// `system.posix_acl_default`.
    pub acl_default: Bytes,
    /// `trusted.dmv`: a directory's default layout over MDTs for new subdirectories
    /// (`lmv_user_md`).
    pub default_lmv: Bytes,
}

impl Inode {
    /// The owner, group and project.
    pub(crate) fn ownership(&self) -> Ownership {
        Ownership {
            uid: self.uid,
            gid: self.gid,
            projid: self.projid,
        }
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// Whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// The size for users, bytes. A directory takes one block, or as many as its entries fill.
    pub fn shown_size(&self) -> u64 {
        if !self.is_dir() {
            return self.size;
        }
        let entries = self.size.saturating_sub(DIR_BLOCK);
        entries.max(1).div_ceil(DIR_BLOCK).saturating_mul(DIR_BLOCK)
    }

    /// Records a change of attributes at `now`; `ctime` never decreases.
    pub fn record_change(&mut self, now: Time) {
        self.ctime = self.ctime.max(now);
    }

    /// Records a change of the contents at `now`: sets `mtime` and `ctime` to the later one of
    /// `now` and the old `ctime`.
    pub fn record_modification(&mut self, now: Time) {
        self.record_change(now);
        self.mtime = self.ctime;
    }

    /// The end of the file's part that is on the MDT; `None` if the whole file is on OSTs.
    pub fn data_max(&self) -> Option<u64> {
        match self.is_file() {
            true => layout::data_max(&self.lov),
            false => None,
        }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let sections = [
            (TAG_LOV, &self.lov),
            (TAG_LINKS, &self.links),
            (TAG_SYMLINK, &self.symlink),
            (TAG_ACL_ACCESS, &self.acl_access),
            (TAG_ACL_DEFAULT, &self.acl_default),
            (TAG_DEFAULT_LMV, &self.default_lmv),
        ];
        /// Upper bound of the size before the sections, bytes.
        const FIXED_BYTES_MAX: usize = 116;
        /// Bytes before the contents of a section: tag and length.
        const SECTION_HEAD: usize = 1 + 4;
        let sections_len: usize = sections.iter().map(|(_, bytes)| SECTION_HEAD + bytes.len()).sum();
        let mut writer = Writer::with_capacity(FIXED_BYTES_MAX + sections_len);
        writer.u8(VERSION);
        writer
            .u8(if self.has_xattrs { HAS_XATTRS } else { 0 } | if self.som.is_some() { HAS_SOM } else { 0 });
        for v in [self.mode, self.uid, self.gid, self.projid, self.nlink, self.flags] {
            writer.u32(v);
        }
        writer.u64(self.rdev);
        writer.u64(self.size);
        for t in [self.atime, self.mtime, self.ctime, self.btime] {
            writer.u64(t.sec as u64);
        }
        writer.u64(self.version);
        for t in [self.atime, self.mtime, self.ctime, self.btime] {
            writer.u32(t.ns);
        }
        if let Some((size, blocks)) = self.som {
            writer.u64(size);
            writer.u64(blocks);
        }
        for (tag, bytes) in sections {
            if !bytes.is_empty() {
                writer.u8(tag);
                writer.u32(bytes.len() as u32);
                writer.put(bytes);
            }
        }
        writer.finish()
    }

    /// Decodes a record.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the record is malformed or of an unknown version.
    pub fn decode(value: &Bytes) -> Result<Inode, WireError> {
        let mut reader = Reader::new("inode record", value);
        let version = reader.u8()?;
        if version != VERSION && version != VERSION_SECONDS {
            let found = version.into();
            return Err(WireError::Value {
                what: "inode record's version",
                expected: "1 or 2",
                found,
            });
        }
        let record_flags = reader.u8()?;
        let mut inode = Inode {
            mode: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            projid: reader.u32()?,
            nlink: reader.u32()?,
            flags: reader.u32()?,
            rdev: reader.u64()?,
            size: reader.u64()?,
            atime: Time::secs(reader.u64()? as i64),
            mtime: Time::secs(reader.u64()? as i64),
            ctime: Time::secs(reader.u64()? as i64),
            btime: Time::secs(reader.u64()? as i64),
            version: reader.u64()?,
            has_xattrs: record_flags & HAS_XATTRS != 0,
            ..Inode::default()
        };
        if version == VERSION {
            for t in [
                &mut inode.atime,
                &mut inode.mtime,
                &mut inode.ctime,
                &mut inode.btime,
            ] {
                *t = Time::new(t.sec, reader.u32()?);
            }
        }
        if record_flags & HAS_SOM != 0 {
            inode.som = Some((reader.u64()?, reader.u64()?));
        }
        while !reader.is_empty() {
            let tag = reader.u8()?;
            let len = reader.u32()? as usize;
            let bytes = value.slice_ref(reader.take(len)?);
            match tag {
                TAG_LOV => inode.lov = bytes,
                TAG_LINKS => inode.links = bytes,
                TAG_SYMLINK => inode.symlink = bytes,
                TAG_ACL_ACCESS => inode.acl_access = bytes,
                TAG_ACL_DEFAULT => inode.acl_default = bytes,
                TAG_DEFAULT_LMV => inode.default_lmv = bytes,
                _ => {
                    let found = tag.into();
                    return Err(WireError::Value {
                        what: "inode record's section",
                        expected: "1 to 6",
                        found,
                    });
                }
            }
        }
        Ok(inode)
    }
}

wire::impl_has_times!(Inode);

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The FID of the inode.
    pub fid: Fid,
    /// The type bits of the inode's mode (`S_IFMT`).
    pub kind: u32,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Inode;
    use bytes::Bytes;
    use wire::Time;

    fn sample() -> Inode {
        Inode {
            mode: 0o100644,
            uid: 1,
            gid: 2,
            projid: 3,
            nlink: 4,
            rdev: 5,
            flags: 6,
            size: 7,
            atime: Time::new(-8, 1),
            mtime: Time::new(9, 2),
            ctime: Time::new(10, 3),
            btime: Time::new(11, 4),
            version: 12,
            som: Some((13, 14)),
            has_xattrs: true,
            lov: Bytes::from_static(b"layout"),
            links: Bytes::from_static(b"links"),
            symlink: Bytes::new(),
            acl_access: Bytes::from_static(b"acl"),
            acl_default: Bytes::new(),
            default_lmv: Bytes::from_static(b"default"),
        }
    }

    #[test]
    fn inode_record_round_trips() {
        assert_eq!(Inode::decode(&sample().encode()).unwrap(), sample());
        assert_eq!(
            Inode::decode(&Inode::default().encode()).unwrap(),
            Inode::default()
        );
    }

    #[test]
    fn record_of_version_1_has_whole_seconds() {
        let mut old = sample().encode().to_vec();
        // Version 1 has no nanoseconds.
        old.drain(82..98);
        old[0] = 1;
        let inode = Inode::decode(&Bytes::from(old)).unwrap();
        let whole = |t: Time| Time::secs(t.sec);
        let expected = Inode {
            atime: whole(sample().atime),
            mtime: whole(sample().mtime),
            ctime: whole(sample().ctime),
            btime: whole(sample().btime),
            ..sample()
        };
        assert_eq!(inode, expected);
    }

    #[test]
    fn malformed_record_is_an_error() {
        let good = sample().encode();
        for len in 0..good.len() {
            // A record truncated between two sections looks like one without the later sections.
            let _ = Inode::decode(&good.slice(..len));
        }
        let mut bad = good.to_vec();
        bad[0] = 9;
        assert!(Inode::decode(&Bytes::from(bad)).is_err());
        assert!(Inode::decode(&good.slice(..50)).is_err());
    }
}
