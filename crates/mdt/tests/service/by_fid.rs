//! Tests of access by FID (`.lustre/fid`, `MDS_RMFID`), of subdirectory mounts, of names of missing
//! inodes, and of the sizes of directories.

use bytes::Bytes;
use osd::Batch;
use wire::{
    DISP_LOOKUP_NEG, Errno, Fid, MDS_ATTR_MODE, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_GET_ROOT,
    MDS_GETATTR_NAME, MDS_OPEN_CREAT, MDS_REINT, MDS_RMFID, MdtBody, MdtRecSetattr, MdtRecUnlink,
    REINT_RMENTRY, WireStruct, nul_terminated,
};

use crate::fixture::Fixture;
use testbase::mds_client::Client;

/// The directory `.lustre/fid`: its names are FIDs.
const BY_FID: Fid = Fid::DOT_LUSTRE_FID;

/// Looks up the FID of a name.
async fn find(c: &Client, dir: Fid, name: &str) -> Result<Fid, Errno> {
    let result = c.getattr(dir, name).await;
    match Errno::from_status(result.status) {
        Some(e) => Err(e),
        None if result.disposition & DISP_LOOKUP_NEG != 0 => Err(Errno::ENOENT),
        None => Ok(result.fid()),
    }
}

#[tokio::test]
async fn files_are_found_by_their_fid() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    assert_eq!(find(&c, Fid::ROOT, ".lustre").await, Ok(Fid::DOT_LUSTRE));
    assert_eq!(find(&c, Fid::DOT_LUSTRE, "fid").await, Ok(BY_FID));
    assert_eq!(find(&c, BY_FID, "..").await, Ok(Fid::DOT_LUSTRE));
    assert_eq!(find(&c, Fid::DOT_LUSTRE, "..").await, Ok(Fid::ROOT));
    let dir = c.mkdir(Fid::ROOT, "d").await;
    let file = c.make(dir, "f", 0o010666, "").await.unwrap();
    for fid in [dir, file, Fid::ROOT, Fid::DOT_LUSTRE, BY_FID] {
        assert_eq!(find(&c, BY_FID, &fid.to_string()).await, Ok(fid));
    }
    let body = MdtBody {
        mbo_fid1: BY_FID,
        ..MdtBody::default()
    };
    let bufs = vec![
        body.to_bytes(),
        Bytes::new(),
        nul_terminated(file.to_string().as_bytes()),
    ];
    let reply = c.call(MDS_GETATTR_NAME, bufs).await.unwrap();
    assert_eq!(reply.get::<MdtBody>(1).unwrap().mbo_fid1, file);
    let missing = c.new_fid().to_string();
    for name in [&missing[..], "f", "[0x1:0x2:0x0]", "[0x200000400:0x2:0x3]"] {
        assert_eq!(find(&c, BY_FID, name).await, Err(Errno::ENOENT), "{name}");
    }
}

#[tokio::test]
async fn removed_open_file_is_found_by_its_fid() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "f", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    c.unlink(Fid::ROOT, "f", false).await.unwrap();
    let name = created.fid().to_string();
    assert_eq!(find(&c, BY_FID, &name).await, Ok(created.fid()));
    c.close(created.fid(), created.handle()).await.unwrap();
    assert_eq!(find(&c, BY_FID, &name).await, Err(Errno::ENOENT));
}

#[tokio::test]
async fn dot_lustre_is_not_listed_and_its_entries_cannot_change() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    assert_eq!(c.readdir(Fid::ROOT).await, [".", ".."]);
    assert_eq!(c.readdir(Fid::DOT_LUSTRE).await, [".", "..", "fid"]);
    assert_eq!(c.readdir(BY_FID).await, [".", ".."]);
    let root = c
        .getattr_as(wire::IT_GETATTR, Fid::ROOT, Fid::ROOT, "")
        .await
        .body;
    assert_eq!(root.mbo_nlink, 2);
    let dir = c.mkdir(Fid::ROOT, "d").await;
    let file = c.make(Fid::ROOT, "f", 0o010666, "").await.unwrap();
    let refused = Some(Errno::EPERM);
    for dot in [Fid::DOT_LUSTRE, BY_FID] {
        assert_eq!(c.make(dot, "x", 0o040777, "").await.err(), refused);
        assert_eq!(c.link(file, dot, "x").await.err(), refused);
        assert_eq!(c.rename((Fid::ROOT, "d"), (dot, "x")).await.err(), refused);
        let created = c.open(dot, "x", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
        assert_eq!(created.status, Errno::EPERM.status());
    }
    let by_fid = file.to_string();
    assert_eq!(c.unlink(BY_FID, &by_fid, false).await.err(), refused);
    assert_eq!(c.rename((BY_FID, &by_fid), (dir, "x")).await.err(), refused);
    assert_eq!(c.unlink(Fid::DOT_LUSTRE, "fid", true).await.err(), refused);
    assert_eq!(c.unlink(Fid::ROOT, ".lustre", true).await.err(), refused);
    assert_eq!(c.rename((Fid::ROOT, ".lustre"), (dir, "x")).await.err(), refused);
    assert_eq!(
        c.rename((Fid::ROOT, "d"), (Fid::ROOT, ".lustre")).await.err(),
        refused
    );
    assert_eq!(
        c.make(Fid::ROOT, ".lustre", 0o040777, "").await.err(),
        Some(Errno::EEXIST)
    );
    // A file found by its FID can be linked.
    c.link(file, dir, "again").await.unwrap();
    // A change of the mode of `.lustre/fid` survives a restart.
    let rec = MdtRecSetattr {
        sa_fid: BY_FID,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o040777,
        ..Default::default()
    };
    c.setattr(rec, &[]).await.unwrap();
    f.restart().await;
    let c = f.client().await;
    assert_eq!(c.getattr(Fid::DOT_LUSTRE, "fid").await.body.mbo_mode, 0o040777);
    assert_eq!(find(&c, BY_FID, &by_fid).await, Ok(file));
}

#[tokio::test]
async fn only_the_superuser_accesses_files_by_fid() {
    let f = Fixture::new(0).await;
    let root = f.client().await;
    let dir = root.mkdir(Fid::ROOT, "d").await;
    let c = f.client().await;
    *c.creds.lock() = (12345, 12345, 0);
    assert_eq!(find(&c, Fid::ROOT, ".lustre").await, Ok(Fid::DOT_LUSTRE));
    assert_eq!(find(&c, BY_FID, &dir.to_string()).await, Err(Errno::EACCES));
}

/// Sends `MDS_RMFID`; returns the error of each file.
async fn rmfid(c: &Client, fids: &[Fid]) -> Vec<Option<Errno>> {
    let creds = *c.creds.lock();
    let body = MdtBody {
        mbo_fsuid: creds.0,
        mbo_fsgid: creds.1,
        mbo_capability: creds.2,
        mbo_ctime: 1000,
        ..MdtBody::default()
    };
    let array: Vec<u8> = fids.iter().flat_map(|fid| fid.to_bytes().to_vec()).collect();
    let reply = c
        .modify(MDS_RMFID, vec![body.to_bytes(), array.clone().into()])
        .await
        .unwrap();
    assert_eq!(reply.buf(2), array);
    let statuses = reply.buf(3).as_chunks::<4>().0;
    statuses
        .iter()
        .map(|s| Errno::from_status(i32::from_le_bytes(*s)))
        .collect()
}

#[tokio::test]
async fn rmfid_removes_all_names_of_files_and_empty_directories() {
    let f = Fixture::new(1).await;
    let (c, other) = (f.client().await, f.client().await);
    let dir = c.mkdir(Fid::ROOT, "d").await;
    let file = c.make(dir, "f", 0o010666, "").await.unwrap();
    c.link(file, Fid::ROOT, "g").await.unwrap();
    assert_eq!(other.getattr(dir, "f").await.fid(), file);
    let (empty, full) = (c.mkdir(dir, "empty").await, c.mkdir(dir, "full").await);
    c.make(full, "x", 0o010666, "").await.unwrap();
    let opened = c.open(dir, "open", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let opened_again = other.open(dir, "open", MDS_FMODE_READ).await;
    c.close(opened.fid(), opened.handle()).await.unwrap();
    let missing = c.new_fid();
    let fids = [
        file,
        empty,
        full,
        opened.fid(),
        missing,
        Fid::ROOT,
        Fid::DOT_LUSTRE,
    ];
    let statuses = rmfid(&c, &fids).await;
    let expected = [
        None,
        None,
        Some(Errno::ENOTEMPTY),
        Some(Errno::EBUSY),
        Some(Errno::ENOENT),
        Some(Errno::EINVAL),
        Some(Errno::EINVAL),
    ];
    assert_eq!(statuses, expected);
    assert!(other.revoked.lock().iter().any(|(fid, _)| *fid == file));
    let mut names = c.readdir(dir).await;
    names.sort();
    assert_eq!(names, [".", "..", "full", "open"]);
    assert_eq!(c.readdir(Fid::ROOT).await, [".", "..", "d"]);
    assert_eq!(rmfid(&c, &[file]).await, [Some(Errno::ENOENT)]);
    other.close(opened.fid(), opened_again.handle()).await.unwrap();
    assert_eq!(rmfid(&c, &[opened.fid()]).await, [None]);
    assert_eq!(c.readdir(dir).await.len(), 3);
    let partial_fid = vec![MdtBody::default().to_bytes(), Bytes::from_static(&[0; 17])];
    assert_eq!(c.modify(MDS_RMFID, partial_fid).await.err(), Some(Errno::EINVAL));
}

#[tokio::test]
async fn rmfid_needs_write_permission_on_file_and_directory() {
    let f = Fixture::new(0).await;
    let (root, c) = (f.client().await, f.client().await);
    *c.creds.lock() = (12345, 12345, 0);
    let open = root.mkdir(Fid::ROOT, "open").await;
    let rec = MdtRecSetattr {
        sa_fid: open,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o040777,
        ..Default::default()
    };
    root.setattr(rec, &[]).await.unwrap();
    let own = c.make(open, "own", 0o010600, "").await.unwrap();
    let foreign = root.make(open, "foreign", 0o010600, "").await.unwrap();
    let hidden = root.make(Fid::ROOT, "hidden", 0o010666, "").await.unwrap();
    let rec = MdtRecSetattr {
        sa_fid: hidden,
        sa_mode: 0o010666,
        ..rec
    };
    root.setattr(rec, &[]).await.unwrap();
    let denied = Some(Errno::EACCES);
    assert_eq!(rmfid(&c, &[foreign, hidden, own]).await, [denied, denied, None]);
    f.map_clients(&[("readonly_mount", "1")]);
    let body = MdtBody::default().to_bytes();
    let bufs = vec![body, foreign.to_bytes()];
    assert_eq!(root.modify(MDS_RMFID, bufs).await.err(), Some(Errno::EROFS));
}

#[tokio::test]
async fn get_root_resolves_a_subdirectory_mount() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let sub = c.mkdir(Fid::ROOT, "sub").await;
    let dir = c.mkdir(sub, "dir").await;
    c.make(sub, "file", 0o010666, "").await.unwrap();
    let root_of = async |path: &str| {
        let bufs = vec![MdtBody::default().to_bytes(), nul_terminated(path.as_bytes())];
        let reply = c.call(MDS_GET_ROOT, bufs).await?;
        Ok(reply.get::<MdtBody>(1).unwrap().mbo_fid1)
    };
    for (path, fid) in [
        ("", Fid::ROOT),
        ("/", Fid::ROOT),
        ("/sub", sub),
        ("sub//dir/", dir),
        ("/sub/./dir/.", dir),
    ] {
        assert_eq!(root_of(path).await, Ok(fid), "{path}");
    }
    let long = format!("/{}", "n".repeat(256));
    let refused = [
        ("/none", Errno::ENOENT),
        ("/sub/none/dir", Errno::ENOENT),
        ("/sub/file", Errno::ENOTDIR),
        ("/sub/file/x", Errno::ENOTDIR),
        ("/..", Errno::EINVAL),
        ("/sub/../sub", Errno::EINVAL),
        (&long, Errno::EINVAL),
    ];
    for (path, errno) in refused {
        assert_eq!(root_of(path).await, Err(errno), "{path}");
    }
}

#[tokio::test]
async fn rm_entry_removes_only_names_of_missing_inodes() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    c.mkdir(Fid::ROOT, "there").await;
    let lost = c.mkdir(Fid::ROOT, "lost").await;
    let mut batch = Batch::new();
    batch.delete(mdt::store::keys::inode(lost));
    f.index.apply(batch).unwrap();
    let mut f = f;
    f.restart().await;
    let c = f.client().await;
    let rm_entry = async |name: &str, cap: u32| {
        let rec = MdtRecUnlink {
            ul_opcode: REINT_RMENTRY,
            ul_cap: cap,
            ul_fsuid: if cap == 0 { 12345 } else { 0 },
            ul_fid1: Fid::ROOT,
            ul_time: 1000,
            ..MdtRecUnlink::default()
        };
        let bufs = vec![rec.to_bytes(), Bytes::new(), nul_terminated(name.as_bytes())];
        c.modify(MDS_REINT, bufs).await.map(drop)
    };
    assert_eq!(rm_entry("lost", 0).await, Err(Errno::EPERM));
    assert_eq!(rm_entry("there", u32::MAX).await, Err(Errno::EEXIST));
    assert_eq!(rm_entry("none", u32::MAX).await, Err(Errno::ENOENT));
    assert_eq!(rm_entry(".lustre", u32::MAX).await, Err(Errno::EPERM));
    assert_eq!(rm_entry("lost", u32::MAX).await, Ok(()));
    let root = c
        .getattr_as(wire::IT_GETATTR, Fid::ROOT, Fid::ROOT, "")
        .await
        .body;
    assert_eq!((c.readdir(Fid::ROOT).await.len(), root.mbo_nlink), (3, 3));
}

#[tokio::test]
async fn directory_has_the_size_of_its_entries_in_blocks() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "d").await;
    let size = async || {
        let body = c.getattr(Fid::ROOT, "d").await.body;
        assert_eq!(body.mbo_blocks, body.mbo_size / 512);
        body.mbo_size
    };
    assert_eq!(size().await, 4096);
    // Each name of six bytes takes 40 bytes: a block has room for 102.
    let name = |i: u32| format!("file{i:02x}");
    for i in 0..102 {
        c.make(dir, &name(i), 0o010666, "").await.unwrap();
    }
    assert_eq!(size().await, 4096);
    c.mkdir(dir, "dir0ab").await;
    assert_eq!(size().await, 8192);
    c.rename((dir, "file00"), (dir, "file01")).await.unwrap();
    assert_eq!(size().await, 4096, "one name less");
    c.rename((dir, "file01"), (Fid::ROOT, "moved")).await.unwrap();
    let moved = c.getattr(Fid::ROOT, "moved").await.fid();
    c.link(moved, dir, "linked").await.unwrap();
    c.make(dir, "again0", 0o010666, "").await.unwrap();
    assert_eq!(size().await, 8192);
    c.unlink(dir, "again0", false).await.unwrap();
    c.unlink(dir, "dir0ab", true).await.unwrap();
    assert_eq!(size().await, 4096);
}
