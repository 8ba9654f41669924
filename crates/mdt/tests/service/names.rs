//! Tests of names, attributes and directories with one client.

use bytes::Bytes;
use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, Errno, FLD_LOOKUP, FLD_QUERY, Fid,
    LCK_PR, LuSeqRange, MDS_ATTR_MODE, MDS_GET_ROOT, MDS_GETATTR, MDS_INODELOCK_LOOKUP as LOOKUP,
    MDS_INODELOCK_PERM as PERM, MDS_INODELOCK_UPDATE as UPDATE, MDS_INODELOCK_XATTR as XATTR, MDS_STATFS,
    MDS_SYNC, MdtBody, MdtRecSetattr, OBD_MD_FLAGSTATFS, OBD_MD_LINKNAME, ObdStatfs, WireStruct,
};

use crate::fixture::Fixture;

/// The disposition of a lookup that found its name.
const FOUND: u64 = DISP_IT_EXECD | DISP_LOOKUP_EXECD | DISP_LOOKUP_POS;
/// The disposition of a lookup of a name that does not exist.
const NOT_FOUND: u64 = DISP_IT_EXECD | DISP_LOOKUP_EXECD | DISP_LOOKUP_NEG;

#[tokio::test]
async fn mount_finds_the_root_and_the_space() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let reply = c
        .call(MDS_GET_ROOT, vec![MdtBody::default().to_bytes()])
        .await
        .unwrap();
    assert_eq!(reply.get::<MdtBody>(1).unwrap().mbo_fid1, Fid::ROOT);
    let request = LuSeqRange {
        lsr_start: Fid::ROOT.f_seq,
        ..LuSeqRange::default()
    };
    let opc = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
    let reply = c.call(FLD_QUERY, vec![opc, request.to_bytes()]).await.unwrap();
    assert_eq!(reply.get::<LuSeqRange>(1).unwrap().lsr_index, 0);
    let body = MdtBody {
        mbo_valid: OBD_MD_FLAGSTATFS,
        ..MdtBody::default()
    };
    let sum: ObdStatfs = c
        .call(MDS_STATFS, vec![body.to_bytes()])
        .await
        .unwrap()
        .get(1)
        .unwrap();
    assert_eq!((sum.os_blocks, sum.os_bavail, sum.os_bsize), (2000, 800, 4096));
    let own: ObdStatfs = c.call(MDS_STATFS, vec![]).await.unwrap().get(1).unwrap();
    assert!(own.os_blocks > 2000 && own.os_bsize.is_power_of_two());
}

#[tokio::test]
async fn directory_is_created_looked_up_listed_and_removed() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let missing = c.getattr(Fid::ROOT, "d").await;
    assert_eq!(
        (missing.disposition, missing.status, missing.has_lock()),
        (NOT_FOUND, 0, false)
    );
    let d = c.mkdir(Fid::ROOT, "d").await;
    let found = c.getattr(Fid::ROOT, "d").await;
    assert_eq!((found.disposition, found.status, found.fid()), (FOUND, 0, d));
    assert_eq!(
        (found.lock_fid, found.mode, found.bits),
        (d, LCK_PR, LOOKUP | UPDATE | PERM)
    );
    assert_eq!((found.body.mbo_mode, found.body.mbo_nlink), (0o040755, 2));
    let mut names: Vec<String> = (0..300).map(|i| format!("f{i}")).collect();
    for name in &names {
        c.make(d, name, 0o010666, "").await.unwrap();
    }
    let mut listed = c.readdir(d).await;
    assert_eq!(listed.drain(..2).collect::<Vec<_>>(), [".", ".."]);
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    assert_eq!(
        c.unlink(Fid::ROOT, "d", true).await.unwrap_err(),
        Errno::ENOTEMPTY
    );
    for name in &names {
        c.unlink(d, name, false).await.unwrap();
    }
    c.unlink(Fid::ROOT, "d", true).await.unwrap();
    assert_eq!(c.getattr(Fid::ROOT, "d").await.disposition, NOT_FOUND);
    let by_fid = c.getattr_as(wire::IT_GETATTR, Fid::ROOT, d, "").await;
    assert_eq!(
        (by_fid.status, by_fid.has_lock()),
        (Errno::ENOENT.status(), false)
    );
}

#[tokio::test]
async fn symlinks_are_read_and_links_and_renames_change_names() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let (a, b) = (c.mkdir(Fid::ROOT, "a").await, c.mkdir(Fid::ROOT, "b").await);
    let link = c.make(a, "sym", 0o120777, "../b/file").await.unwrap();
    let body = MdtBody {
        mbo_fid1: link,
        mbo_valid: OBD_MD_LINKNAME,
        ..MdtBody::default()
    };
    let reply = c
        .call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()])
        .await
        .unwrap();
    assert_eq!(reply.buf(2), b"../b/file\0");
    let fifo = c.make(a, "fifo", 0o010600, "").await.unwrap();
    c.link(fifo, b, "other").await.unwrap();
    assert_eq!(c.getattr(b, "other").await.body.mbo_nlink, 2);
    c.rename((a, "fifo"), (a, "fifo2")).await.unwrap();
    c.rename((a, "sym"), (b, "sym2")).await.unwrap();
    assert_eq!(c.getattr(b, "sym2").await.fid(), link);
    assert_eq!(c.getattr(a, "fifo2").await.fid(), fifo);
    assert_eq!(
        c.rename((Fid::ROOT, "a"), (a, "x")).await.unwrap_err(),
        Errno::EINVAL
    );
    c.rename((Fid::ROOT, "a"), (b, "a")).await.unwrap();
    assert_eq!(c.rename((b, "a"), (a, "x")).await.unwrap_err(), Errno::EINVAL);
    assert_eq!(
        c.rename((b, "a"), (Fid::ROOT, "b")).await.unwrap_err(),
        Errno::ENOTEMPTY
    );
    assert_eq!(c.getattr(a, "..").await.fid(), b);
}

#[tokio::test]
async fn xattrs_and_modes_are_changed_and_read() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    c.setxattr(d, "user.a", b"one").await.unwrap();
    c.setxattr(d, "user.b", b"two!").await.unwrap();
    let all = c.xattrs(d).await;
    // `trusted.link` and `trusted.lma` are included: a client that caches all attributes does not
    // request single ones.
    assert_eq!((all.bits, all.mode, all.body.mbo_max_mdsize), (XATTR, LCK_PR, 4));
    assert_eq!(all.reply.buf(5), b"user.a\0user.b\0trusted.link\0trusted.lma\0");
    let link = c.getxattr(d, "trusted.link").await.unwrap();
    let lma = c.getxattr(d, "trusted.lma").await.unwrap();
    assert_eq!(all.reply.buf(6), [&b"onetwo!"[..], &link, &lma].concat());
    // The rename changes `trusted.link`, so the server revokes the client's lock first.
    c.rename((Fid::ROOT, "d"), (Fid::ROOT, "e")).await.unwrap();
    let revoked = |fid, bits| fid == d && bits & XATTR != 0;
    assert!(c.revoked.lock().iter().any(|(fid, bits)| revoked(*fid, *bits)));
    assert_ne!(c.getxattr(d, "trusted.link").await.unwrap(), link);
    c.rename((Fid::ROOT, "e"), (Fid::ROOT, "d")).await.unwrap();
    let rec = MdtRecSetattr {
        sa_fid: d,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o040700,
        ..Default::default()
    };
    assert_eq!(c.setattr(rec, &[]).await.unwrap().mbo_mode, 0o040700);
    assert_eq!(c.getattr(Fid::ROOT, "d").await.body.mbo_mode, 0o040700);
    let body = MdtBody {
        mbo_fid1: d,
        ..MdtBody::default()
    };
    c.call(MDS_SYNC, vec![body.to_bytes(), Bytes::new()])
        .await
        .unwrap();
}

#[tokio::test]
async fn lookup_needs_search_permission() {
    let f = Fixture::new(0).await;
    let root = f.client().await;
    let d = root.mkdir(Fid::ROOT, "d").await;
    root.make(d, "x", 0o010666, "").await.unwrap();
    let rec = MdtRecSetattr {
        sa_fid: d,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o040700,
        ..Default::default()
    };
    root.setattr(rec, &[]).await.unwrap();
    let c = f.client().await;
    *c.creds.lock() = (5, 5, 0);
    let denied = c.getattr(d, "x").await;
    assert_eq!(
        (denied.status, denied.has_lock()),
        (Errno::EACCES.status(), false)
    );
    assert_eq!(
        c.make(Fid::ROOT, "mine", 0o040777, "").await.unwrap_err(),
        Errno::EACCES
    );
}

/// A program that copies a file sets all visible attributes, which must not fail.
#[tokio::test]
async fn setting_an_internal_attribute_is_ignored() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let names_and_values = async || {
        let reply = c.xattrs(d).await.reply;
        [5, 6].map(|i| reply.buf(i).to_vec())
    };
    let before = names_and_values().await;
    for name in [
        "lma", "lmv", "link", "fid", "version", "som", "hsm", "dmv", "lfsck_ns",
    ] {
        let name = format!("trusted.{name}");
        for value in [&b""[..], b"garbage"] {
            c.setxattr(d, &name, value).await.unwrap();
        }
        *c.creds.lock() = (7, 7, 0);
        assert_eq!(
            c.setxattr(d, &name, b"x").await.map(drop),
            Err(Errno::EPERM),
            "{name}"
        );
        *c.creds.lock() = (0, 0, u32::MAX);
    }
    assert_eq!(names_and_values().await, before);
    // With this value, the attribute requests a directory striped over several MDTs.
    let striped = wire::LMV_USER_MAGIC.to_le_bytes();
    let refused = c.setxattr(d, "trusted.lmv", &striped).await;
    assert_eq!(refused.map(drop), Err(Errno::EOPNOTSUPP));
}
