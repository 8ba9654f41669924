//! Converts object attributes between the wire (`obdo`, `ost_lvb`) and the store ([`ObjAttr`],
//! [`SetAttr`]).

use wire::{
    Errno, Fid, HasTimes, OBD_MD_FLATIME, OBD_MD_FLBLKSZ, OBD_MD_FLBLOCKS, OBD_MD_FLCTIME,
    OBD_MD_FLDATAVERSION, OBD_MD_FLFID, OBD_MD_FLGID, OBD_MD_FLMODE, OBD_MD_FLMTIME, OBD_MD_FLPROJID,
    OBD_MD_FLSIZE, OBD_MD_FLTYPE, OBD_MD_FLUID, OBD_MD_LAYOUT_VERSION, OST_LVB_ERR_INIT, Obdo, OstLvb,
    Precision, Transno,
};

use crate::{ObjAttr, SetAttr};

/// `o_mode` of an object with changed data: a regular file, 0666.
const MODE: u32 = 0o100_666;
/// `o_mode` of an object without changed data. Lustre marks it with setuid and setgid.
const MODE_UNWRITTEN: u32 = 0o106_666;
/// `o_blksize`: the preferred size of a read or write, bytes.
const BLKSIZE: u32 = 4 << 20;

/// The attributes that a request sets: those marked in `o_valid`. Clients mark owner, project and
/// parent in every write.
pub fn to_set_attr(oa: &Obdo, precision: Precision) -> SetAttr {
    let has = |flag: u64| oa.o_valid & flag == flag;
    let times = oa.times().at(precision);
    SetAttr {
        atime: has(OBD_MD_FLATIME).then_some(times.atime),
        mtime: has(OBD_MD_FLMTIME).then_some(times.mtime),
        ctime: has(OBD_MD_FLCTIME).then_some(times.ctime),
        changed: None,
        uid: has(OBD_MD_FLUID).then_some(oa.o_uid),
        gid: has(OBD_MD_FLGID).then_some(oa.o_gid),
        projid: has(OBD_MD_FLPROJID).then_some(oa.o_projid),
        // `f_ver` of a file's FID is always 0, so the stripe's index is stored there.
        parent: has(OBD_MD_FLFID).then_some(Fid::new(oa.o_parent_seq, oa.o_parent_oid, oa.o_stripe_idx)),
        layout_version: has(OBD_MD_LAYOUT_VERSION).then_some(oa.o_layout_version),
        data_version: None,
    }
}

/// Like [`to_set_attr`], for a request that changes the object's data: sets the data version to
/// `transno`. If the request marks both mtime and ctime, these are the time of the change
/// ([`SetAttr::changed`]).
pub fn to_data_change(oa: &Obdo, precision: Precision, transno: Transno) -> SetAttr {
    let both = OBD_MD_FLMTIME | OBD_MD_FLCTIME;
    let set = SetAttr {
        data_version: Some(transno.0),
        ..to_set_attr(oa, precision)
    };
    match oa.o_valid & both {
        marked if marked == both => SetAttr {
            mtime: None,
            ctime: None,
            changed: Some(oa.times().at(precision)),
            ..set
        },
        _ => set,
    }
}

/// Copies the store's attributes into a reply; zeros without `attr`.
pub fn put(oa: &mut Obdo, attr: Option<&ObjAttr>, precision: Precision) {
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
    oa.o_blksize = BLKSIZE;
    oa.set_times(a.times().at(precision));
    oa.o_uid = a.uid;
    oa.o_gid = a.gid;
    oa.o_projid = a.projid;
    oa.o_mode = if a.data_version == 0 { MODE_UNWRITTEN } else { MODE };
}

/// Copies the data version into a reply. Clients compare data versions to detect changed data.
pub fn put_version(oa: &mut Obdo, attr: Option<&ObjAttr>) {
    oa.o_valid |= OBD_MD_FLDATAVERSION;
    oa.o_data_version = attr.map_or(0, |a| a.data_version);
}

/// The lock value block of an object.
pub fn lvb(attr: Option<&ObjAttr>) -> OstLvb {
    let a = attr.copied().unwrap_or_default();
    let mut lvb = OstLvb {
        lvb_size: a.size,
        lvb_blocks: a.blocks,
        ..OstLvb::default()
    };
    lvb.set_times(a.times());
    lvb
}

/// The lock value block that reports an error. Lustre's clients expect the errno in `lvb_blocks`.
pub fn lvb_error(errno: Errno) -> OstLvb {
    OstLvb {
        lvb_blocks: OST_LVB_ERR_INIT.wrapping_add_signed(errno.status().into()),
        ..OstLvb::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Time, Times};

    #[test]
    fn lvb_error_is_in_lvb_blocks() {
        let blocks = lvb_error(Errno::EIO).lvb_blocks;
        assert_eq!(blocks, 0xffba_dbad_7fff_fffb);
        assert_eq!(blocks & wire::OST_LVB_ERR_MASK, wire::OST_LVB_ERR_MASK);
    }

    #[test]
    fn only_attributes_marked_valid_are_set() {
        let oa = Obdo {
            o_valid: OBD_MD_FLMTIME | OBD_MD_FLUID,
            o_mtime: 5,
            o_atime: 6,
            o_uid: 7,
            o_gid: 8,
            ..Obdo::default()
        };
        assert_eq!(
            to_set_attr(&oa, Precision::Seconds),
            SetAttr {
                mtime: Some(Time::secs(5)),
                uid: Some(7),
                ..SetAttr::default()
            }
        );
    }

    #[test]
    fn nanoseconds_are_used_only_if_negotiated() {
        let t = Time::new(5, 6);
        let times = Times {
            atime: t,
            mtime: t,
            ctime: t,
        };
        let mut oa = Obdo {
            o_valid: OBD_MD_FLMTIME | OBD_MD_FLCTIME,
            ..Obdo::default()
        };
        oa.set_times(times);
        let ctime_of_change = |precision| {
            to_data_change(&oa, precision, Transno(1))
                .changed
                .map(|t| t.ctime)
        };
        assert_eq!(ctime_of_change(Precision::Nanoseconds), Some(t));
        assert_eq!(ctime_of_change(Precision::Seconds), Some(Time::secs(5)));
        let mut attr = ObjAttr::default();
        attr.set_times(times);
        let mut reply = Obdo::default();
        put(&mut reply, Some(&attr), Precision::Seconds);
        assert_eq!((reply.o_mtime, reply.o_padding_4, reply.o_padding_5), (5, 0, 0));
        put(&mut reply, Some(&attr), Precision::Nanoseconds);
        assert_eq!(reply.times(), times);
    }

    #[test]
    fn never_changed_object_has_setuid_and_setgid() {
        let mut oa = Obdo::default();
        put(&mut oa, None, Precision::Seconds);
        assert_eq!(oa.o_mode & 0o6000, 0o6000);
        put(
            &mut oa,
            Some(&ObjAttr {
                data_version: 1,
                size: 9,
                ..ObjAttr::default()
            }),
            Precision::Seconds,
        );
        assert_eq!((oa.o_mode, oa.o_size), (0o100_666, 9));
    }
}
