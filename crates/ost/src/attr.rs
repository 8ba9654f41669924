//! Between what the wire says of an object (`obdo`, `ost_lvb`) and what the store keeps.

use osd::{ObjAttr, SetAttr};
use wire::{
    Fid, OBD_MD_FLATIME, OBD_MD_FLBLKSZ, OBD_MD_FLBLOCKS, OBD_MD_FLCTIME, OBD_MD_FLDATAVERSION, OBD_MD_FLFID,
    OBD_MD_FLGID, OBD_MD_FLMODE, OBD_MD_FLMTIME, OBD_MD_FLPROJID, OBD_MD_FLSIZE, OBD_MD_FLTYPE, OBD_MD_FLUID,
    OBD_MD_LAYOUT_VERSION, Obdo, OstLvb,
};

/// `o_mode` of an object that was written: a regular file, 0666.
const MODE: u32 = 0o100_666;
/// `o_mode` of one that never was: with the bits that say so.
const MODE_UNWRITTEN: u32 = 0o106_666;

/// What of a request's attributes is to be set. Owner, project and parent come with every write, the store keeps them.
pub(crate) fn to_set(oa: &Obdo) -> SetAttr {
    let has = |flag: u64| oa.o_valid & flag == flag;
    let time = |flag: u64, secs: i64| has(flag).then_some((secs, 0));
    SetAttr {
        atime: time(OBD_MD_FLATIME, oa.o_atime),
        mtime: time(OBD_MD_FLMTIME, oa.o_mtime),
        ctime: time(OBD_MD_FLCTIME, oa.o_ctime),
        uid: has(OBD_MD_FLUID).then_some(oa.o_uid),
        gid: has(OBD_MD_FLGID).then_some(oa.o_gid),
        projid: has(OBD_MD_FLPROJID).then_some(oa.o_projid),
        // The stripe's index takes the place of the parent's version, which is always 0.
        parent: has(OBD_MD_FLFID).then_some(Fid::new(oa.o_parent_seq, oa.o_parent_oid, oa.o_stripe_idx)),
        layout_version: has(OBD_MD_LAYOUT_VERSION).then_some(oa.o_layout_version),
        data_version: None,
    }
}

/// Puts what the store knows into a reply.
pub(crate) fn put(oa: &mut Obdo, attr: Option<&ObjAttr>) {
    let a = attr.copied().unwrap_or_default();
    oa.o_valid |= OBD_MD_FLSIZE
        | OBD_MD_FLBLOCKS
        | OBD_MD_FLBLKSZ
        | OBD_MD_FLATIME
        | OBD_MD_FLMTIME
        | OBD_MD_FLCTIME
        | OBD_MD_FLUID
        | OBD_MD_FLGID
        | OBD_MD_FLPROJID
        | OBD_MD_FLMODE
        | OBD_MD_FLTYPE;
    oa.o_size = a.size;
    oa.o_blocks = a.blocks;
    oa.o_blksize = 4 << 20;
    oa.o_atime = a.atime.0;
    oa.o_mtime = a.mtime.0;
    oa.o_ctime = a.ctime.0;
    oa.o_uid = a.uid;
    oa.o_gid = a.gid;
    oa.o_projid = a.projid;
    oa.o_mode = if a.data_version == 0 { MODE_UNWRITTEN } else { MODE };
}

/// The data's version, for those who ask whether it has changed.
pub(crate) fn put_version(oa: &mut Obdo, attr: Option<&ObjAttr>) {
    oa.o_valid |= OBD_MD_FLDATAVERSION;
    oa.o_data_version = attr.map_or(0, |a| a.data_version);
}

/// The value block of the object's locks.
pub(crate) fn lvb(attr: Option<&ObjAttr>) -> OstLvb {
    let a = attr.copied().unwrap_or_default();
    OstLvb {
        lvb_size: a.size,
        lvb_mtime: a.mtime.0,
        lvb_atime: a.atime.0,
        lvb_ctime: a.ctime.0,
        lvb_blocks: a.blocks,
        lvb_mtime_ns: a.mtime.1,
        lvb_atime_ns: a.atime.1,
        lvb_ctime_ns: a.ctime.1,
        lvb_padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_valid_is_set() {
        let oa = Obdo {
            o_valid: OBD_MD_FLMTIME | OBD_MD_FLUID,
            o_mtime: 5,
            o_atime: 6,
            o_uid: 7,
            o_gid: 8,
            ..Obdo::default()
        };
        assert_eq!(
            to_set(&oa),
            SetAttr {
                mtime: Some((5, 0)),
                uid: Some(7),
                ..SetAttr::default()
            }
        );
    }

    #[test]
    fn an_object_that_was_never_written_says_so() {
        let mut oa = Obdo::default();
        put(&mut oa, None);
        assert_eq!(oa.o_mode & 0o6000, 0o6000);
        put(
            &mut oa,
            Some(&ObjAttr {
                data_version: 1,
                size: 9,
                ..ObjAttr::default()
            }),
        );
        assert_eq!((oa.o_mode, oa.o_size), (0o100_666, 9));
    }
}
