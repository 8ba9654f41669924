//! Tests with clients that omit the checks of Nacre's and Lustre's clients: the target must check
//! requests and identities itself.

use bytes::Bytes;
use wire::{
    Errno, Fid, LuSeqRange, MDS_ATTR_CTIME, MDS_ATTR_FORCE, MDS_ATTR_FROM_OPEN, MDS_ATTR_KILL_SGID,
    MDS_ATTR_KILL_SUID, MDS_ATTR_MODE, MDS_ATTR_MTIME, MDS_ATTR_OVERRIDE, MDS_ATTR_SIZE, MDS_ATTR_UID,
    MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_TRUNC, MdtRecCreate,
    MdtRecSetattr, REINT_CREATE, SEQ_ALLOC_SUPER, SEQ_QUERY, WireStruct,
};

use crate::fixture::Fixture;
use testbase::mds_client::Client;

/// User id, group id and capabilities of a user that claims all capabilities.
const USER: (u32, u32, u32) = (5, 5, u32::MAX);
/// User id, group id and capabilities of root.
const ROOT: (u32, u32, u32) = (0, 0, u32::MAX);

/// A setattr that sets the attributes `valid` (`MDS_ATTR_*`), to 0.
fn setattr_rec(fid: Fid, valid: u64) -> MdtRecSetattr {
    MdtRecSetattr {
        sa_fid: fid,
        sa_valid: valid,
        ..MdtRecSetattr::default()
    }
}

/// Creates a FIFO in the root with this FID and these bytes as its name.
async fn make_fifo(c: &Client, fid: Fid, name: &[u8]) -> Result<(), Errno> {
    let rec = MdtRecCreate {
        cr_opcode: REINT_CREATE,
        cr_cap: u32::MAX,
        cr_fid1: Fid::ROOT,
        cr_fid2: fid,
        cr_mode: 0o010666,
        ..MdtRecCreate::default()
    };
    let bufs = vec![
        rec.to_bytes(),
        Bytes::new(),
        Bytes::copy_from_slice(name),
        Bytes::new(),
    ];
    c.modify(wire::MDS_REINT, bufs).await.map(drop)
}

#[tokio::test]
async fn capabilities_of_users_are_ignored_unless_enabled() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = c.open(Fid::ROOT, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let mode = MdtRecSetattr {
        sa_mode: 0o040700,
        ..setattr_rec(dir, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    c.make(dir, "inside", 0o010666, "").await.unwrap();
    *c.creds.lock() = USER;
    let fid = file.fid();
    assert_eq!(
        c.setattr(setattr_rec(fid, MDS_ATTR_MODE), &[]).await.unwrap_err(),
        Errno::EPERM
    );
    assert_eq!(
        c.setattr(setattr_rec(fid, MDS_ATTR_UID), &[]).await.unwrap_err(),
        Errno::EPERM
    );
    assert_eq!(
        c.unlink(Fid::ROOT, "file", false).await.unwrap_err(),
        Errno::EACCES
    );
    assert_eq!(
        c.setxattr(fid, "trusted.t", b"1").await.unwrap_err(),
        Errno::EPERM
    );
    assert_eq!(c.getattr(dir, "inside").await.status, Errno::EACCES.status());
    // The MDT accepts the capabilities that the administrator enabled.
    f.params
        .set("mdt.*.enable_cap_mask", "+cap_chown,cap_dac_override")
        .unwrap();
    assert_eq!(c.getattr(dir, "inside").await.status, 0);
    let chown = MdtRecSetattr {
        sa_uid: 5,
        ..setattr_rec(fid, MDS_ATTR_UID)
    };
    assert_eq!(c.setattr(chown, &[]).await.unwrap().mbo_uid, 5);
}

#[tokio::test]
async fn root_is_squashed_unless_its_nid_is_exempt() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let open = c.mkdir(Fid::ROOT, "open").await;
    let mode = MdtRecSetattr {
        sa_mode: 0o041777,
        ..setattr_rec(open, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    c.make(open, "roots", 0o010666, "").await.unwrap();
    f.params.set("mdt.testfs-MDT0000.root_squash", "99:98").unwrap();
    f.params
        .set("mdt.testfs-MDT0000.nosquash_nids", "10.0.0.*@tcp")
        .unwrap();
    assert_eq!(
        c.make(Fid::ROOT, "x", 0o010666, "").await.unwrap_err(),
        Errno::EACCES
    );
    assert_eq!(c.unlink(open, "roots", false).await.unwrap_err(), Errno::EPERM);
    assert_eq!(
        c.rename((open, "roots"), (open, "mine")).await.unwrap_err(),
        Errno::EPERM
    );
    assert_eq!(
        c.make(open, "device", 0o060666, "").await.unwrap_err(),
        Errno::EPERM
    );
    c.make(open, "nobodys", 0o010666, "").await.unwrap();
    let created = c.open(open, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    for (name, fid) in [("nobodys", None), ("file", Some(created.fid()))] {
        let found = c.getattr(open, name).await;
        assert_eq!((found.body.mbo_uid, found.body.mbo_gid), (99, 98), "{name}");
        assert!(fid.is_none_or(|fid| fid == found.fid()));
    }
    assert_eq!(
        c.setattr(setattr_rec(created.fid(), MDS_ATTR_UID), &[])
            .await
            .unwrap_err(),
        Errno::EPERM
    );
    f.params.set("mdt.*.nosquash_nids", "10.0.0.*@tcp 0@lo").unwrap();
    c.make(Fid::ROOT, "x", 0o010666, "").await.unwrap();
    let shown = f.params.get("mdt.*.nosquash_nids");
    assert_eq!(shown[0].1, "10.0.0.*@tcp 0@lo");
    f.params.set("mdt.*.nosquash_nids", "NONE").unwrap();
    assert_eq!(
        c.make(Fid::ROOT, "y", 0o010666, "").await.unwrap_err(),
        Errno::EACCES
    );
    f.params.set("mdt.*.root_squash", "0:0").unwrap();
    c.make(Fid::ROOT, "y", 0o010666, "").await.unwrap();
    assert!(f.params.set("mdt.*.root_squash", "nobody").is_err());
}

#[tokio::test]
async fn nodemap_squashes_root_or_all_users() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let open = c.mkdir(Fid::ROOT, "open").await;
    let mode = MdtRecSetattr {
        sa_mode: 0o040777,
        ..setattr_rec(open, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    let owner_of_new = async |name: &str| {
        c.make(open, name, 0o010666, "").await.unwrap();
        let created = c.getattr(open, name).await.body;
        (created.mbo_uid, created.mbo_gid)
    };
    f.map_clients(&[("admin", "0"), ("squash_uid", "99"), ("squash_gid", "98")]);
    assert_eq!(owner_of_new("a").await, (99, 98));
    assert_eq!(c.make(Fid::ROOT, "x", 0o010666, "").await, Err(Errno::EACCES));
    *c.creds.lock() = (7, 8, u32::MAX);
    assert_eq!(owner_of_new("b").await, (7, 8));
    f.map_clients(&[("trusted", "0")]);
    assert_eq!(owner_of_new("c").await, (65534, 65534));
    // An exemption from root_squash does not exempt from the nodemap.
    *c.creds.lock() = (0, 0, u32::MAX);
    f.params.set("mdt.*.nosquash_nids", "0@lo").unwrap();
    assert_eq!(owner_of_new("d").await, (0, 0));
    f.map_clients(&[("admin", "0")]);
    assert_eq!(owner_of_new("e").await, (65534, 65534));
}

#[tokio::test]
async fn client_with_a_read_only_nodemap_changes_nothing() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "d").await;
    let file = c.open(dir, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let erofs = Errno::EROFS;
    f.map_clients(&[("readonly_mount", "1")]);
    assert_eq!(c.make(dir, "x", 0o010666, "").await, Err(erofs));
    assert_eq!(c.make(dir, "x", 0o040777, "").await, Err(erofs));
    assert_eq!(c.unlink(dir, "file", false).await.map(drop), Err(erofs));
    assert_eq!(
        c.rename((dir, "file"), (dir, "other")).await.map(drop),
        Err(erofs)
    );
    assert_eq!(c.link(file.fid(), dir, "more").await.map(drop), Err(erofs));
    assert_eq!(
        c.setattr(setattr_rec(file.fid(), MDS_ATTR_MODE), &[])
            .await
            .map(drop),
        Err(erofs)
    );
    assert_eq!(c.setxattr(file.fid(), "user.a", b"b").await.map(drop), Err(erofs));
    for (name, flags) in [
        ("file", MDS_FMODE_WRITE),
        ("file", MDS_FMODE_READ | MDS_OPEN_TRUNC),
        ("new", MDS_OPEN_CREAT | MDS_FMODE_READ),
    ] {
        let opened = c.open(dir, name, flags).await;
        assert_eq!(
            (opened.status, opened.handle()),
            (erofs.status(), 0),
            "{name} {flags:#x}"
        );
    }
    // A client can close an open file, but the MDT does not store the time in the close.
    let before = c.getattr(dir, "file").await.body.mbo_mtime;
    let rec = MdtRecSetattr {
        sa_mtime: 77,
        ..setattr_rec(file.fid(), MDS_ATTR_MTIME | MDS_ATTR_CTIME)
    };
    c.close_with(file.handle(), rec).await.unwrap();
    assert_eq!(c.getattr(dir, "file").await.body.mbo_mtime, before);
    let opened = c.open(dir, "file", MDS_OPEN_CREAT | MDS_FMODE_READ).await;
    assert_eq!(opened.status, 0);
    assert_eq!(c.readdir(dir).await, [".", "..", "file"]);
    f.map_clients(&[]);
    c.make(dir, "x", 0o010666, "").await.unwrap();
}

#[tokio::test]
async fn client_denied_by_its_nodemap_is_evicted_and_cannot_reconnect() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    c.mkdir(Fid::ROOT, "d").await;
    f.map_clients(&[("deny_mount", "1")]);
    // The client's next request fails because of the eviction. The client reconnects and is
    // refused.
    let refused = async {
        while c.import.state() != rpc::ImportState::Closed {
            let _ = c.call(wire::MDS_STATFS, Vec::new()).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), refused)
        .await
        .unwrap();
    f.map_clients(&[]);
    let again = f.client().await;
    assert_eq!(again.getattr(Fid::ROOT, "d").await.status, 0);
}

#[tokio::test]
async fn changes_of_names_need_search_permission() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let x = c.make(d, "x", 0o010666, "").await.unwrap();
    let mode = MdtRecSetattr {
        sa_mode: 0o040700,
        ..setattr_rec(d, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    *c.creds.lock() = USER;
    for name in ["x", "none"] {
        assert_eq!(c.make(d, name, 0o010666, "").await.unwrap_err(), Errno::EACCES);
        assert_eq!(c.unlink(d, name, false).await.unwrap_err(), Errno::EACCES);
        assert_eq!(c.link(x, d, name).await.unwrap_err(), Errno::EACCES);
        assert_eq!(c.rename((d, name), (d, "y")).await.unwrap_err(), Errno::EACCES);
        assert_eq!(
            c.rename((Fid::ROOT, "d"), (d, name)).await.unwrap_err(),
            Errno::EACCES
        );
    }
}

#[tokio::test]
async fn truncate_needs_write_permission_or_an_open_for_write() {
    let f = Fixture::new(1).await;
    let (c, other) = (f.client().await, f.client().await);
    let created = c.open(Fid::ROOT, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let fid = created.fid();
    let mode = MdtRecSetattr {
        sa_mode: 0o104444,
        ..setattr_rec(fid, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    *c.creds.lock() = USER;
    *other.creds.lock() = USER;
    // MDS_ATTR_FROM_OPEN claims that the change is part of an open.
    let truncate = setattr_rec(fid, MDS_ATTR_SIZE | MDS_ATTR_FROM_OPEN | MDS_ATTR_OVERRIDE);
    assert_eq!(other.setattr(truncate, &[]).await.unwrap_err(), Errno::EACCES);
    let reading = other.open(fid, "", MDS_OPEN_BY_FID | MDS_FMODE_READ).await;
    assert_eq!(reading.status, 0);
    assert_eq!(other.setattr(truncate, &[]).await.unwrap_err(), Errno::EACCES);
    assert_eq!(
        other
            .setattr(setattr_rec(fid, MDS_ATTR_KILL_SUID), &[])
            .await
            .unwrap_err(),
        Errno::EACCES
    );
    // Any user may send a change of no attribute; without permission, its time is not stored.
    let empty_change = MdtRecSetattr {
        sa_ctime: i64::MAX / 4,
        ..setattr_rec(fid, MDS_ATTR_CTIME)
    };
    assert!(other.setattr(empty_change, &[]).await.unwrap().mbo_ctime < i64::MAX / 4);
    // This client has had the file open for write since before the file became read-only.
    c.setattr(truncate, &[]).await.unwrap();
}

/// Linux clears the set-ID bits before a write by a user without permission to keep them.
#[tokio::test]
async fn writers_may_clear_but_not_set_set_id_bits() {
    let f = Fixture::new(1).await;
    let (c, other) = (f.client().await, f.client().await);
    *other.creds.lock() = USER;
    let fid = c.open(Fid::ROOT, "file", MDS_OPEN_CREAT).await.fid();
    let mode = |bits: u32, valid: u64| MdtRecSetattr {
        sa_mode: 0o100_000 | bits,
        ..setattr_rec(fid, MDS_ATTR_MODE | valid)
    };
    let forced = |bits| mode(bits, MDS_ATTR_FORCE);
    c.setattr(mode(0o4744, 0), &[]).await.unwrap();
    assert_eq!(
        other.setattr(forced(0o744), &[]).await.unwrap_err(),
        Errno::EACCES
    );
    c.setattr(mode(0o6777, 0), &[]).await.unwrap();
    for wrong in [mode(0o777, 0), forced(0o700), forced(0o7777)] {
        assert_eq!(other.setattr(wrong, &[]).await.unwrap_err(), Errno::EPERM);
    }
    let body = other.setattr(forced(0o777), &[]).await.unwrap();
    assert_eq!(body.mbo_mode & 0o7777, 0o777);
    let (roots_group, no_group) = (0, u32::MAX);
    for (group, before, after) in [
        (no_group, 0o6777, 0o777),
        (no_group, 0o6767, 0o767),
        (roots_group, 0o6767, 0o2767),
    ] {
        c.setattr(mode(before, 0), &[]).await.unwrap();
        let kill = MdtRecSetattr {
            sa_suppgid: group,
            ..setattr_rec(fid, MDS_ATTR_KILL_SUID | MDS_ATTR_KILL_SGID)
        };
        let body = other.setattr(kill, &[]).await.unwrap();
        assert_eq!(body.mbo_mode & 0o7777, after);
    }
}

#[tokio::test]
async fn create_needs_a_fid_of_the_clients_sequences() {
    let mut f = Fixture::new(1).await;
    let (c, other) = (f.client().await, f.client().await);
    let foreign = [
        // In a sequence of another client.
        Fid::new(other.seq, 1, 0),
        // In a sequence that is not allocated yet.
        Fid::new(c.seq + 1000, 1, 0),
        // In a sequence of an OST.
        Fid::new(0x2_4000_0400, 1, 0),
        // In a sequence of no target.
        Fid::new(u64::MAX, 1, 0),
        // In reserved sequences.
        Fid::ROOT,
        Fid::ZERO,
        Fid::new(2, 1, 0),
        Fid::new(0x1_0000_0000, 1, 0),
    ];
    for fid in foreign {
        let refused = make_fifo(&c, fid, b"x\0").await.unwrap_err();
        assert!(
            [Errno::EPERM, Errno::EINVAL].contains(&refused),
            "{fid}: {refused}"
        );
    }
    make_fifo(&c, Fid::new(c.seq, 99, 0), b"x\0").await.unwrap();
    assert_eq!(
        make_fifo(&c, Fid::new(c.seq, 99, 0), b"y\0").await.unwrap_err(),
        Errno::EEXIST
    );
    let opc = Bytes::copy_from_slice(&SEQ_ALLOC_SUPER.to_le_bytes());
    let requests = vec![opc, LuSeqRange::default().to_bytes()];
    assert_eq!(c.call(SEQ_QUERY, requests).await.unwrap_err(), Errno::EPERM);
    // After a restart a client continues to own its sequences.
    let (seq, other_seq) = (c.seq, other.seq);
    f.restart().await;
    let (c, other) = (f.client().await, f.client().await);
    make_fifo(&c, Fid::new(seq, 100, 0), b"z\0").await.unwrap();
    assert_eq!(
        make_fifo(&other, Fid::new(seq, 101, 0), b"w\0")
            .await
            .unwrap_err(),
        Errno::EPERM
    );
    make_fifo(&other, Fid::new(other_seq, 100, 0), b"w\0")
        .await
        .unwrap();
}

#[tokio::test]
async fn create_with_an_invalid_name_fails() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let long = [b'x'; 256];
    for (name, errno) in [
        (&b"a/b\0"[..], Errno::EINVAL),
        (b"", Errno::EINVAL),
        (b"\0", Errno::EINVAL),
        (b".\0", Errno::EINVAL),
        (b"..\0", Errno::EINVAL),
        (&long, Errno::ENAMETOOLONG),
    ] {
        assert_eq!(
            make_fifo(&c, c.new_fid(), name).await.unwrap_err(),
            errno,
            "{name:?}"
        );
    }
    // Bytes after a NUL are not part of a name.
    make_fifo(&c, c.new_fid(), b"a\0/../b\0").await.unwrap();
    assert_eq!(c.readdir(Fid::ROOT).await, [".", "..", "a"]);
}

#[tokio::test]
async fn handles_and_locks_of_other_clients_are_estale() {
    let f = Fixture::new(1).await;
    let (c, other) = (f.client().await, f.client().await);
    let created = c.open(Fid::ROOT, "file", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let stale = Errno::ESTALE;
    assert_eq!(
        other.close(created.fid(), created.handle()).await.unwrap_err(),
        stale
    );
    assert_eq!(other.close(created.fid(), 0).await.unwrap_err(), stale);
    let d = c.mkdir(Fid::ROOT, "d").await;
    let lock = c.getattr(Fid::ROOT, "d").await.lock_handle;
    assert_eq!(other.try_cancel(lock).await.unwrap().status, stale.0);
    assert_eq!(other.try_cancel(u64::MAX).await.unwrap().status, stale.0);
    // The lock and the open file still exist.
    other.setattr(setattr_rec(d, MDS_ATTR_MODE), &[]).await.unwrap();
    assert!(c.revoked.lock().iter().any(|(fid, _)| *fid == d));
    c.close(created.fid(), created.handle()).await.unwrap();
    assert_eq!(c.close(created.fid(), created.handle()).await.unwrap_err(), stale);
}

#[tokio::test]
async fn privileged_creates_and_xattrs_need_root() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let mode = MdtRecSetattr {
        sa_mode: 0o040777,
        ..setattr_rec(d, MDS_ATTR_MODE)
    };
    c.setattr(mode, &[]).await.unwrap();
    c.setxattr(d, "trusted.secret", b"x").await.unwrap();
    assert_eq!(&c.getxattr(d, "trusted.secret").await.unwrap()[..], b"x");
    *c.creds.lock() = USER;
    assert_eq!(c.make(d, "disk", 0o060666, "").await.unwrap_err(), Errno::EPERM);
    let whiteout = c.make(d, "whiteout", 0o020666, "").await.unwrap();
    assert_eq!(c.getxattr(d, "trusted.secret").await.unwrap_err(), Errno::ENODATA);
    let own = c.make(d, "own", 0o010666, "").await.unwrap();
    c.setxattr(own, "security.selinux", b"label").await.unwrap();
    assert_eq!(
        c.setxattr(own, "security.capability", b"all").await.unwrap_err(),
        Errno::EPERM
    );
    *c.creds.lock() = ROOT;
    c.setxattr(whiteout, "security.capability", b"all").await.unwrap();
    c.make(d, "disk", 0o060666, "").await.unwrap();
}

#[tokio::test]
async fn changes_and_lookups_work_with_extreme_times() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    for time in [i64::MAX, i64::MIN] {
        let rec = MdtRecSetattr {
            sa_ctime: time,
            ..setattr_rec(d, MDS_ATTR_CTIME)
        };
        c.setattr(rec, &[]).await.unwrap();
        assert_eq!(
            c.getattr_as(wire::IT_LOOKUP, Fid::ROOT, Fid::ZERO, "d")
                .await
                .status,
            0
        );
        c.make(d, &format!("at {time}"), 0o010666, "").await.unwrap();
    }
}
