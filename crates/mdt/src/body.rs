//! Attributes in replies: `mdt_body`, and the buffers of layout, link target and ACL. The body has
//! the lengths of these buffers.
//!
//! The valid bits equal those of a Lustre server; the messages of the tests' assertions name the
//! network captures that show them. If a file has objects, the MDT sends only the lazy size: the
//! client gets the exact size from the OSTs.

use bytes::{BufMut, Bytes, BytesMut};
use wire::{
    Fid, HasTimes, MdtBody, OBD_MD_DEFAULT_MEA, OBD_MD_FLACL, OBD_MD_FLATIME, OBD_MD_FLBLOCKS,
    OBD_MD_FLBTIME, OBD_MD_FLCTIME, OBD_MD_FLDIREA, OBD_MD_FLEASIZE, OBD_MD_FLFLAGS, OBD_MD_FLGID,
    OBD_MD_FLID, OBD_MD_FLLAZYBLOCKS, OBD_MD_FLLAZYSIZE, OBD_MD_FLMODE, OBD_MD_FLMODEASIZE, OBD_MD_FLMTIME,
    OBD_MD_FLNLINK, OBD_MD_FLPROJID, OBD_MD_FLRDEV, OBD_MD_FLSIZE, OBD_MD_FLTYPE, OBD_MD_FLUID,
    OBD_MD_LINKNAME, OBD_MD_MDS, OBD_MD_MEA, Precision,
};

use crate::{layout, store::Inode};

/// Valid bits (`mbo_valid`) of every reply with attributes.
const BASIC_VALID: u64 = OBD_MD_FLID
    | OBD_MD_FLATIME
    | OBD_MD_FLMTIME
    | OBD_MD_FLCTIME
    | OBD_MD_FLTYPE
    | OBD_MD_FLMODE
    | OBD_MD_FLUID
    | OBD_MD_FLGID
    | OBD_MD_FLPROJID
    | OBD_MD_FLNLINK
    | OBD_MD_FLFLAGS
    | OBD_MD_FLBTIME;
/// Unit of `st_blocks`, bytes.
const BLOCK: u64 = 512;

/// The attributes in a reply, in four buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attrs {
    /// The body, which has the lengths of the next two.
    pub body: MdtBody,
    /// The buffer `MDT_MD`: layout, default layout or a symlink's target; empty without them.
    pub md: Bytes,
    /// The access ACL; empty if not requested or absent.
    pub acl: Bytes,
    /// A directory's default layout over MDTs; empty if not requested or absent.
    pub default_lmv: Bytes,
}

/// The attributes that a client requests, and the negotiated properties of the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttrRequest {
    /// The request's `OBD_MD_*` bits (`mbo_valid`).
    pub valid: u64,
    /// Size of the longest layout of this file system, bytes (`mbo_max_mdsize`).
    pub max_mdsize: u32,
    /// Whether the client supports ACLs.
    pub supports_acl: bool,
    /// The precision of times that client and target negotiated.
    pub precision: Precision,
}

impl AttrRequest {
    fn has(&self, flag: u64) -> bool {
        self.valid & flag == flag
    }
}

/// The attributes of an inode without layout, link target and ACL.
pub(crate) fn basic_body(fid: Fid, inode: &Inode, precision: Precision) -> MdtBody {
    let mut body = MdtBody {
        mbo_fid1: fid,
        mbo_valid: BASIC_VALID,
        mbo_mode: inode.mode,
        mbo_uid: inode.uid,
        mbo_gid: inode.gid,
        mbo_projid: inode.projid,
        mbo_nlink: inode.nlink,
        mbo_flags: inode.flags,
        ..MdtBody::default()
    };
    body.set_times(inode.times().at(precision));
    body.set_btime(precision.of(inode.btime));
    if !inode.is_file() {
        body.mbo_valid |= OBD_MD_FLRDEV;
        body.mbo_rdev = inode.rdev as u32;
    }
    if inode.is_file() && !inode.lov.is_empty() && !layout::is_foreign(&inode.lov) {
        if let Some((size, blocks)) = inode.som {
            body.mbo_valid |= OBD_MD_FLLAZYSIZE | OBD_MD_FLLAZYBLOCKS;
            (body.mbo_size, body.mbo_blocks) = (size, blocks);
        }
    } else {
        body.mbo_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        body.mbo_size = inode.shown_size();
        body.mbo_blocks = if inode.is_dir() { body.mbo_size / BLOCK } else { 0 };
    }
    body
}

/// The body of a reply that names an inode of another MDT.
pub(crate) fn elsewhere(fid: Fid) -> MdtBody {
    MdtBody {
        mbo_fid1: fid,
        mbo_valid: OBD_MD_FLID | OBD_MD_MDS,
        ..MdtBody::default()
    }
}

/// The requested attributes of an inode.
pub(crate) fn attrs(fid: Fid, inode: &Inode, request: AttrRequest) -> Attrs {
    let mut out = Attrs {
        body: basic_body(fid, inode, request.precision),
        ..Attrs::default()
    };
    let body = &mut out.body;
    if inode.is_file() && request.has(OBD_MD_FLEASIZE) && !inode.lov.is_empty() {
        body.mbo_valid |= OBD_MD_FLEASIZE;
        out.md = inode.lov.clone();
    }
    // With OBD_MD_MEA or OBD_MD_DEFAULT_MEA, the client requests the directory's layout over MDTs
    // instead of the default layout of its files.
    let wants_default_lov =
        request.has(OBD_MD_FLDIREA) && request.valid & (OBD_MD_MEA | OBD_MD_DEFAULT_MEA) == 0;
    if inode.is_dir() && wants_default_lov && !inode.lov.is_empty() {
        body.mbo_valid |= OBD_MD_FLDIREA;
        out.md = inode.lov.clone();
    }
    if inode.is_dir() && request.has(OBD_MD_DEFAULT_MEA) && !inode.default_lmv.is_empty() {
        body.mbo_valid |= OBD_MD_FLDIREA | OBD_MD_DEFAULT_MEA;
        out.default_lmv = inode.default_lmv.clone();
    }
    if inode.is_symlink() && request.has(OBD_MD_LINKNAME) {
        body.mbo_valid |= OBD_MD_LINKNAME;
        let mut target = BytesMut::with_capacity(inode.symlink.len() + 1);
        target.put_slice(&inode.symlink);
        target.put_u8(0);
        out.md = target.freeze();
    }
    body.mbo_eadatasize = out.md.len() as u32;
    if request.has(OBD_MD_FLMODEASIZE) {
        body.mbo_valid |= OBD_MD_FLMODEASIZE;
        // An overstriped file's layout may be longer than `max_mdsize`.
        body.mbo_max_mdsize = request.max_mdsize.max(body.mbo_eadatasize);
    }
    if request.has(OBD_MD_FLACL) && request.supports_acl {
        body.mbo_valid |= OBD_MD_FLACL;
        body.mbo_aclsize = inode.acl_access.len() as u32;
        out.acl = inode.acl_access.clone();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{AttrRequest, attrs, basic_body};
    use crate::store::Inode;
    use bytes::Bytes;
    use wire::{Fid, HasTimes, Precision, Time};

    const FID: Fid = Fid::new(0x2_0000_0402, 2, 0);
    const REQUEST: AttrRequest = AttrRequest {
        valid: 0,
        max_mdsize: 0,
        supports_acl: false,
        precision: Precision::Seconds,
    };

    #[test]
    fn times_have_lustres_wire_format_unless_nanoseconds_are_negotiated() {
        let t = Time::new(7, 8);
        let inode = Inode {
            mode: 0o040755,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            ..Inode::default()
        };
        let seconds = basic_body(FID, &inode, Precision::Seconds);
        assert_eq!((seconds.mbo_mtime, seconds.mbo_btime), (7, 7));
        assert_eq!(
            (seconds.mbo_suppgid, seconds.mbo_unused3, seconds.mbo_padding_10),
            (0, 0, 0)
        );
        let nanoseconds = basic_body(FID, &inode, Precision::Nanoseconds);
        assert_eq!((nanoseconds.times().mtime, nanoseconds.btime()), (t, t));
    }

    #[test]
    fn valid_bits_match_captures_of_a_lustre_server() {
        let dir = Inode {
            mode: 0o040755,
            nlink: 2,
            size: 4096,
            ..Inode::default()
        };
        let request = AttrRequest {
            valid: 0x1140_0084_9103_6fdf,
            max_mdsize: 0x80,
            supports_acl: true,
            ..REQUEST
        };
        let body = attrs(FID, &dir, request).body;
        assert_eq!(
            (body.mbo_valid, body.mbo_blocks),
            (0x1100_0080_8001_2fbf, 8),
            "d2, lookup of dir1"
        );
        let lov = Bytes::from_static(&[1; 56]);
        let file = Inode {
            mode: 0o100644,
            nlink: 1,
            lov,
            ..Inode::default()
        };
        let reply = attrs(FID, &file, request);
        assert_eq!(reply.body.mbo_valid, 0x1100_0080_8002_2f8f, "d2, create of file1");
        assert_eq!((reply.md.len(), reply.body.mbo_eadatasize), (56, 56));
        let with_lazy_size = Inode {
            som: Some((6, 8)),
            ..file.clone()
        };
        assert_eq!(
            attrs(FID, &with_lazy_size, request).body.mbo_valid,
            0x1d00_0080_8002_2f8f,
            "i1, lookup of e1"
        );
        assert_eq!(
            basic_body(FID, &file, Precision::Seconds).mbo_valid,
            0x1100_0000_0000_2f8f,
            "d3, setattr of e1"
        );
        let fifo = Inode {
            mode: 0o010644,
            ..Inode::default()
        };
        assert_eq!(
            basic_body(FID, &fifo, Precision::Seconds).mbo_valid,
            0x1100_0000_0001_2fbf,
            "d3, mknod of fifo1"
        );
    }

    #[test]
    fn symlink_target_is_nul_terminated() {
        let symlink = Bytes::from_static(b"../dir1/file1");
        let link = Inode {
            mode: 0o120777,
            size: 13,
            symlink,
            ..Inode::default()
        };
        let reply = attrs(
            FID,
            &link,
            AttrRequest {
                valid: 0x40001,
                ..REQUEST
            },
        );
        assert_eq!(
            reply.body.mbo_valid, 0x1100_0000_0005_2fbf,
            "i4, readlink of sym1"
        );
        assert_eq!(
            (&reply.md[..], reply.body.mbo_eadatasize),
            (&b"../dir1/file1\0"[..], 14)
        );
    }

    #[test]
    fn default_layout_is_sent_only_if_requested() {
        let lov = Bytes::from_static(&[7; 32]);
        let dir = Inode {
            mode: 0o040755,
            nlink: 2,
            size: 4096,
            lov,
            ..Inode::default()
        };
        let reply = attrs(
            FID,
            &dir,
            AttrRequest {
                valid: 0x1002_0001,
                ..REQUEST
            },
        );
        assert_eq!(
            (reply.body.mbo_valid, reply.md.len()),
            (0x1100_0000_1001_2fbf, 32),
            "t8, getstripe -d"
        );
        assert!(
            attrs(
                FID,
                &dir,
                AttrRequest {
                    valid: 0x1140_0084_9103_6fdf,
                    ..REQUEST
                }
            )
            .md
            .is_empty()
        );
    }
}
