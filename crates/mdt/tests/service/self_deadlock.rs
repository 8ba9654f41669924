//! Requests with a wrong inode, or with one inode in two roles. Each must fail before it takes a
//! lock; otherwise it could wait for its own lock. The last two tests send other values that the
//! MDT refuses.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use wire::{
    DISP_OPEN_CREATE, Errno, Fid, LDLM_EXTENT, LDLM_PLAIN, MDS_ATTR_SIZE, MDS_FMODE_WRITE, MDS_OPEN_CREAT,
    MdtRecCreate, MdtRecSetattr, REINT_CREATE, WireStruct,
};

use crate::fixture::Fixture;
use testbase::mds_client::Client;

/// Creates a directory with this FID.
async fn mkdir_with_fid(c: &Client, parent: Fid, fid: Fid) -> Result<(), Errno> {
    let rec = MdtRecCreate {
        cr_opcode: REINT_CREATE,
        cr_cap: u32::MAX,
        cr_fid1: parent,
        cr_fid2: fid,
        cr_mode: 0o040755,
        ..MdtRecCreate::default()
    };
    let name = wire::nul_terminated(b"n");
    let bufs = vec![rec.to_bytes(), Default::default(), name, Default::default()];
    c.modify(wire::MDS_REINT, bufs).await.map(drop)
}

/// Awaits a reply, for at most a minute.
async fn within_a_minute<T>(request: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), request).await.expect("a reply")
}

#[tokio::test]
async fn link_into_a_file_itself_fails_and_the_file_stays_usable() {
    let f = Fixture::new(0).await;
    let (c, other) = (f.client().await, f.client().await);
    let file = c.make(Fid::ROOT, "file", 0o010666, "").await.unwrap();
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    for (target, parent, errno) in [
        (file, file, Errno::ENOTDIR),
        (dir, dir, Errno::EPERM),
        (dir, file, Errno::EPERM),
    ] {
        let result = within_a_minute(c.link(target, parent, "x")).await;
        assert_eq!(result.map(drop), Err(errno));
    }
    within_a_minute(other.touch(file)).await.unwrap();
    within_a_minute(other.unlink(Fid::ROOT, "file", false))
        .await
        .unwrap();
}

#[tokio::test]
async fn many_links_into_a_file_itself_do_not_block_the_target() {
    let f = Fixture::new(0).await;
    let (c, other) = (f.client().await, f.client().await);
    let file = c.make(Fid::ROOT, "file", 0o010666, "").await.unwrap();
    let mut links = JoinSet::new();
    for i in 0..80 {
        let c = c.clone();
        links.spawn(async move { c.link(file, file, &format!("x{i}")).await.map(drop) });
    }
    within_a_minute(other.mkdir(Fid::ROOT, "d")).await;
    for link in within_a_minute(links.join_all()).await {
        assert_eq!(link, Err(Errno::ENOTDIR));
    }
}

#[tokio::test]
async fn change_of_a_name_fails_outside_a_directory() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let file = c.make(Fid::ROOT, "file", 0o010666, "").await.unwrap();
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let missing = c.new_fid();
    for (parent, errno) in [(file, Errno::ENOTDIR), (missing, Errno::ENOENT)] {
        assert_eq!(
            within_a_minute(c.make(parent, "x", 0o010666, "")).await,
            Err(errno)
        );
        assert_eq!(
            within_a_minute(c.unlink(parent, "x", false)).await.map(drop),
            Err(errno)
        );
        for (src, dst) in [(parent, parent), (parent, dir), (dir, parent)] {
            let result = within_a_minute(c.rename((src, "a"), (dst, "b"))).await;
            assert_eq!(result.map(drop), Err(errno));
        }
        let result = within_a_minute(c.open(parent, "x", MDS_OPEN_CREAT | MDS_FMODE_WRITE)).await;
        assert_eq!((result.status, result.handle()), (errno.status(), 0));
        assert_eq!(result.disposition & DISP_OPEN_CREATE, 0);
    }
}

#[tokio::test]
async fn create_with_a_fid_in_use_is_eexist() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    for fid in [dir, c.make(dir, "file", 0o010666, "").await.unwrap()] {
        assert_eq!(
            within_a_minute(mkdir_with_fid(&c, dir, fid)).await,
            Err(Errno::EEXIST)
        );
    }
    assert_eq!(c.readdir(dir).await, [".", "..", "file"]);
}

#[tokio::test]
async fn lock_of_a_type_that_the_mdt_does_not_use_is_einval() {
    let f = Fixture::new(0).await;
    let (c, other) = (f.client().await, f.client().await);
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    for lr_type in [LDLM_EXTENT, LDLM_PLAIN] {
        assert_eq!(
            c.lock_exclusively(lr_type, dir.res_id()).await,
            Err(Errno::EINVAL)
        );
    }
    within_a_minute(other.make(dir, "x", 0o010666, "")).await.unwrap();
}

#[tokio::test]
async fn size_above_the_signed_limit_is_efbig() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = c.open(Fid::ROOT, "f", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    for (size, expected) in [
        (i64::MAX as u64, Ok(())),
        (1 << 63, Err(Errno::EFBIG)),
        (u64::MAX, Err(Errno::EFBIG)),
    ] {
        let rec = MdtRecSetattr {
            sa_fid: file.fid(),
            sa_valid: MDS_ATTR_SIZE,
            sa_size: size,
            ..MdtRecSetattr::default()
        };
        assert_eq!(c.setattr(rec, &[]).await.map(drop), expected);
    }
}
