//! Requests with wrong or identical objects: each fails before it takes a lock, so that it never
//! waits for its own lock.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use wire::{
    DISP_OPEN_CREATE, Errno, Fid, MDS_ATTR_SIZE, MDS_FMODE_WRITE, MDS_OPEN_CREAT, MdtRecCreate,
    MdtRecSetattr, REINT_CREATE, WireStruct,
};

use crate::{client::Client, fixture::Fixture};

const EXTENT: u32 = 11;
const PLAIN: u32 = 10;

async fn make_as(c: &Client, parent: Fid, fid: Fid) -> Result<(), Errno> {
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

async fn prompt<T>(requests: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), requests)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn link_into_a_file_itself_fails_and_the_file_stays_usable() {
    let f = Fixture::new(0).await;
    let (c, other) = (f.client().await, f.client().await);
    let file = c.make(Fid::ROOT, "file", 0o010666, "").await.unwrap();
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let refused = |done: Result<_, Errno>| done.map(drop).unwrap_err();
    assert_eq!(refused(prompt(c.link(file, file, "x")).await), Errno::ENOTDIR);
    assert_eq!(refused(prompt(c.link(dir, dir, "x")).await), Errno::EPERM);
    assert_eq!(refused(prompt(c.link(dir, file, "x")).await), Errno::EPERM);
    prompt(other.touch(file)).await.unwrap();
    prompt(other.unlink(Fid::ROOT, "file", false)).await.unwrap();
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
    prompt(other.mkdir(Fid::ROOT, "d")).await;
    for link in prompt(links.join_all()).await {
        assert_eq!(link, Err(Errno::ENOTDIR));
    }
}

#[tokio::test]
async fn names_can_be_changed_in_directories_only() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let file = c.make(Fid::ROOT, "file", 0o010666, "").await.unwrap();
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let missing = c.new_fid();
    for (parent, errno) in [(file, Errno::ENOTDIR), (missing, Errno::ENOENT)] {
        assert_eq!(prompt(c.make(parent, "x", 0o010666, "")).await, Err(errno));
        assert_eq!(prompt(c.unlink(parent, "x", false)).await.map(drop), Err(errno));
        for (src, dst) in [(parent, parent), (parent, dir), (dir, parent)] {
            let renamed = prompt(c.rename((src, "a"), (dst, "b"))).await;
            assert_eq!(renamed.map(drop), Err(errno));
        }
        let opened = prompt(c.open(parent, "x", MDS_OPEN_CREAT | MDS_FMODE_WRITE)).await;
        assert_eq!((opened.status, opened.handle()), (errno.status(), 0));
        assert_eq!(opened.disposition & DISP_OPEN_CREATE, 0);
    }
}

#[tokio::test]
async fn create_with_a_fid_in_use_is_eexist() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    for fid in [dir, c.make(dir, "file", 0o010666, "").await.unwrap()] {
        assert_eq!(prompt(make_as(&c, dir, fid)).await, Err(Errno::EEXIST));
    }
    assert_eq!(c.readdir(dir).await, [".", "..", "file"]);
}

#[tokio::test]
async fn lock_of_an_unused_type_is_einval() {
    let f = Fixture::new(0).await;
    let (c, other) = (f.client().await, f.client().await);
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    for lr_type in [EXTENT, PLAIN] {
        assert_eq!(c.lock_as(lr_type, dir.res_id()).await, Err(Errno::EINVAL));
    }
    prompt(other.make(dir, "x", 0o010666, "")).await.unwrap();
}

#[tokio::test]
async fn size_above_the_signed_limit_is_efbig() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let file = c.open(Fid::ROOT, "f", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    for (size, done) in [
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
        assert_eq!(c.setattr(rec, &[]).await.map(drop), done);
    }
}
