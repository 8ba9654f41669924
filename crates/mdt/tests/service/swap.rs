//! Tests of volatile files, and of swaps of the layouts of two files.

use bytes::Bytes;
use mdt::layout::{self, StripeObject};
use osd::{LocalStores, Stores};
use rpc::ReplyMsg;
use wire::{
    CloseData, Errno, Fid, LustreHandle, MDS_ATTR_MODE, MDS_ATTR_UID, MDS_CLOSE_LAYOUT_SWAP, MDS_FMODE_READ,
    MDS_FMODE_WRITE, MDS_INODELOCK_LAYOUT as LAYOUT, MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_LEASE,
    MDS_OPEN_LOCK, MDS_OPEN_VOLATILE, MDS_SWAP_LAYOUTS, MdcSwapLayouts217, MdtBody, MdtRecSetattr,
    OBD_MD_CLOSE_INTENT_EXECED, WireStruct,
};

use crate::fixture::{Fixture, wait_until};
use testbase::mds_client::{Client, Intent};

/// The name that Lustre's client sends.
const NAME: &str = ".^L^S^T^R:VOLATILE:0000:1234ABCD:fd=3";
const VOLATILE: u64 = MDS_OPEN_VOLATILE | MDS_OPEN_CREAT | MDS_FMODE_WRITE;
const LEASE: u64 = MDS_OPEN_LEASE | MDS_OPEN_LOCK | MDS_OPEN_BY_FID | MDS_FMODE_READ | MDS_FMODE_WRITE;

/// Creates a file and closes it.
async fn create_file(c: &Client, name: &str) -> Fid {
    let created = c.open(Fid::ROOT, name, MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    c.close(created.fid(), created.handle()).await.unwrap();
    created.fid()
}

/// Creates and opens a volatile file.
async fn open_volatile(c: &Client) -> Intent {
    let opened = c.open(Fid::ROOT, NAME, VOLATILE).await;
    assert_eq!(opened.status, 0);
    assert_ne!(opened.handle(), 0);
    opened
}

/// A file's layout: its bytes and its objects.
async fn layout_of(c: &Client, file: Fid) -> (Bytes, Vec<StripeObject>) {
    let layout = Bytes::copy_from_slice(c.layout(file).await.buf(2));
    let objects = layout::objects(&layout).unwrap();
    (layout, objects)
}

async fn objects_of(c: &Client, file: Fid) -> Vec<Fid> {
    layout_of(c, file).await.1.iter().map(|o| o.fid).collect()
}

/// Whether the client's lock on the file's layout was revoked.
fn is_revoked(c: &Client, file: Fid) -> bool {
    let revoked = c.revoked.lock();
    revoked
        .iter()
        .any(|(fid, bits)| *fid == file && bits & LAYOUT != 0)
}

/// Closes a leased file, and swaps its layout with another's.
async fn close_and_swap(c: &Client, leased: &Intent, file: Fid, other: Fid) -> Result<MdtBody, Errno> {
    let creds = *c.creds.lock();
    let rec = MdtRecSetattr {
        sa_fid: file,
        sa_bias: MDS_CLOSE_LAYOUT_SWAP,
        sa_fsuid: creds.0,
        sa_fsgid: creds.1,
        sa_cap: creds.2,
        ..MdtRecSetattr::default()
    };
    let data = CloseData {
        cd_handle: LustreHandle {
            cookie: leased.lock_handle,
        },
        cd_fid: other,
        ..CloseData::default()
    };
    let closed = c
        .close_intent(leased.handle(), rec, vec![data.to_bytes()])
        .await?;
    closed.get(1)
}

/// Swaps the layouts of two files by `MDS_SWAP_LAYOUTS`.
async fn swap(c: &Client, a: Fid, b: Fid) -> Result<ReplyMsg, Errno> {
    let creds = *c.creds.lock();
    let body = MdtBody {
        mbo_fid1: a,
        mbo_fid2: b,
        mbo_fsuid: creds.0,
        mbo_fsgid: creds.1,
        mbo_capability: creds.2,
        ..MdtBody::default()
    };
    let bufs = vec![body.to_bytes(), MdcSwapLayouts217::default().to_bytes()];
    c.modify(MDS_SWAP_LAYOUTS, bufs).await
}

/// The error of a swap by `MDS_SWAP_LAYOUTS`.
async fn swap_error(c: &Client, a: Fid, b: Fid) -> Option<Errno> {
    swap(c, a, b).await.err()
}

#[tokio::test]
async fn volatile_file_has_no_name_and_its_last_close_destroys_it() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let opened = open_volatile(&c).await;
    let (file, objects) = (opened.fid(), objects_of(&c, opened.fid()).await);
    assert_eq!(opened.body.mbo_nlink, 0);
    assert_eq!(objects.len(), 1);
    assert_eq!(c.readdir(Fid::ROOT).await, [".", ".."]);
    assert_eq!(c.touch(file).await.unwrap().mbo_atime, 5);
    let again = c.open(file, "", MDS_OPEN_BY_FID | MDS_FMODE_READ).await;
    c.close(file, opened.handle()).await.unwrap();
    assert_eq!(c.touch(file).await.unwrap().mbo_atime, 5, "still open");
    c.close(file, again.handle()).await.unwrap();
    assert_eq!(c.touch(file).await, Err(Errno::ENOENT));
    wait_until(|| *f.osts[0].destroyed.lock() == objects).await;
}

#[tokio::test]
async fn volatile_file_is_destroyed_when_its_client_disconnects_or_the_target_restarts() {
    let mut f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let first = open_volatile(&a).await.fid();
    let second = open_volatile(&b).await.fid();
    let (of_first, of_second) = (objects_of(&b, first).await, objects_of(&b, second).await);
    a.disconnect().await;
    assert_eq!(b.touch(first).await, Err(Errno::ENOENT));
    assert!(b.touch(second).await.is_ok());
    wait_until(|| *f.osts[0].destroyed.lock() == of_first).await;
    f.restart().await;
    let c = f.client().await;
    assert_eq!(c.touch(second).await, Err(Errno::ENOENT));
    wait_until(|| f.osts[0].destroyed.lock().ends_with(&of_second)).await;
}

#[tokio::test]
async fn volatile_file_needs_write_permission_on_its_directory() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    *c.creds.lock() = (500, 500, 0);
    let refused = c.open(Fid::ROOT, NAME, VOLATILE).await;
    assert_eq!((refused.status, refused.handle()), (Errno::EACCES.status(), 0));
    let without_create = c.open(Fid::ROOT, NAME, VOLATILE & !MDS_OPEN_CREAT).await;
    assert_eq!((without_create.status, without_create.handle()), (0, 0));
}

#[tokio::test]
async fn close_with_a_swap_gives_each_file_the_layout_and_objects_of_the_other() {
    let f = Fixture::new(2).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a, "file").await;
    let (before, old) = layout_of(&a, file).await;
    let copy = open_volatile(&a).await;
    let (_, new) = layout_of(&a, copy.fid()).await;
    layout_of(&b, file).await;
    let leased = a.open(file, "", LEASE).await;
    let closed = close_and_swap(&a, &leased, file, copy.fid()).await.unwrap();
    assert_ne!(closed.mbo_valid & OBD_MD_CLOSE_INTENT_EXECED, 0);
    assert!(
        is_revoked(&b, file),
        "the swap revokes the layout from a reader, too"
    );
    let (after, objects) = layout_of(&b, file).await;
    assert_eq!(objects, new);
    assert_eq!(layout_of(&a, copy.fid()).await.1, old);
    assert_eq!(after[8..24], before[8..24], "the FID of the file");
    assert_ne!(after[30..32], before[30..32], "the generation");
    let parents = |object: &StripeObject| {
        let parents = f.osts[object.ost.0 as usize].parents.lock();
        let of = parents.iter().filter(|(fid, _)| *fid == object.fid);
        of.map(|(_, parent)| *parent).collect::<Vec<_>>()
    };
    wait_until(|| parents(&new[0]).len() == 2).await;
    assert_eq!(parents(&new[0]), [Fid::ZERO, Fid::new(file.f_seq, file.f_oid, 0)]);
    assert_eq!(
        parents(&old[0]),
        [Fid::ZERO],
        "the volatile file is destroyed soon"
    );
    a.close(copy.fid(), copy.handle()).await.unwrap();
    wait_until(|| *f.osts[old[0].ost.0 as usize].destroyed.lock() == [old[0].fid]).await;
    let opened = b.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await;
    assert_eq!(opened.status, 0, "the lease has ended");
}

#[tokio::test]
async fn close_with_a_swap_needs_an_unrevoked_lease() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = create_file(&a, "file").await;
    let old = objects_of(&a, file).await;
    let copy = open_volatile(&a).await.fid();
    let leased = a.open(file, "", LEASE).await;
    assert_eq!(b.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await.status, 0);
    let broken = close_and_swap(&a, &leased, file, copy).await;
    assert_eq!(broken.unwrap_err(), Errno::ESTALE);
    let ordinary = a.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await;
    let without = close_and_swap(&a, &ordinary, file, copy).await;
    assert_eq!(without.unwrap_err(), Errno::ESTALE);
    assert_eq!(objects_of(&a, file).await, old);
    let again = a.close(file, leased.handle()).await;
    assert_eq!(again.map(drop), Err(Errno::ESTALE), "already closed");
}

#[tokio::test]
async fn swapped_layouts_survive_a_restart() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    let (one, two) = (create_file(&c, "one").await, create_file(&c, "two").await);
    let (of_one, of_two) = (objects_of(&c, one).await, objects_of(&c, two).await);
    swap(&c, one, two).await.unwrap();
    assert_eq!(
        (objects_of(&c, one).await, objects_of(&c, two).await),
        (of_two.clone(), of_one.clone())
    );
    swap(&c, one, one).await.unwrap();
    f.restart().await;
    let c = f.client().await;
    assert_eq!(
        (objects_of(&c, one).await, objects_of(&c, two).await),
        (of_two.clone(), of_one.clone())
    );
    let adopted = [(of_two[0], one), (of_one[0], two)];
    let parents = &f.osts[0].parents;
    wait_until(|| adopted.iter().all(|given| parents.lock().contains(given))).await;
    c.unlink(Fid::ROOT, "one", false).await.unwrap();
    wait_until(|| *f.osts[0].destroyed.lock() == of_two).await;
}

#[tokio::test]
async fn swap_is_on_disk_before_its_reply() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStores::in_dir(dir.path());
    let f = Fixture::with_index(1, store.open_index().await.unwrap()).await;
    let c = f.client().await;
    let (one, two) = (create_file(&c, "one").await, create_file(&c, "two").await);
    let reply = swap(&c, one, two).await.unwrap();
    let (transno, committed) = (reply.body.pb_transno, reply.body.pb_last_committed);
    assert!(transno > 0 && committed >= transno, "{committed} {transno}");
}

#[tokio::test]
async fn swap_layouts_request_revokes_the_leases_of_other_clients() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let (one, two) = (create_file(&a, "one").await, create_file(&a, "two").await);
    let copy = open_volatile(&a).await.fid();
    let leased = a.open(one, "", LEASE).await;
    assert_eq!(leased.status, 0);
    swap(&b, one, two).await.unwrap();
    let stale = close_and_swap(&a, &leased, one, copy).await;
    assert_eq!(stale.unwrap_err(), Errno::ESTALE);
}

#[tokio::test]
async fn swap_needs_read_and_write_permission_on_both_files() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let (one, two) = (create_file(&c, "one").await, create_file(&c, "two").await);
    let chmod = async |file: Fid, mode: u32| {
        let rec = MdtRecSetattr {
            sa_fid: file,
            sa_valid: MDS_ATTR_MODE,
            sa_mode: 0o100000 | mode,
            ..MdtRecSetattr::default()
        };
        *c.creds.lock() = (0, 0, u32::MAX);
        c.setattr(rec, &[]).await.unwrap();
        *c.creds.lock() = (500, 500, 0);
    };
    chmod(two, 0o666).await;
    for mode in [0o622, 0o644] {
        chmod(one, mode).await;
        assert_eq!(swap_error(&c, one, two).await, Some(Errno::EACCES), "{mode:o}");
    }
    chmod(one, 0o666).await;
    swap(&c, one, two).await.unwrap();
}

#[tokio::test]
async fn refused_swap_changes_nothing() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let (one, two) = (create_file(&c, "one").await, create_file(&c, "two").await);
    let objects = (objects_of(&c, one).await, objects_of(&c, two).await);
    let dir = c.mkdir(Fid::ROOT, "dir").await;
    let empty = c.make(Fid::ROOT, "empty", 0o100666, "").await.unwrap();
    assert_eq!(swap_error(&c, one, dir).await, Some(Errno::EINVAL));
    assert_eq!(swap_error(&c, one, empty).await, Some(Errno::EOPNOTSUPP));
    assert_eq!(swap_error(&c, one, c.new_fid()).await, Some(Errno::ENOENT));
    *c.creds.lock() = (500, 500, 0);
    assert_eq!(swap_error(&c, one, two).await, Some(Errno::EACCES));
    *c.creds.lock() = (0, 0, u32::MAX);
    let rec = MdtRecSetattr {
        sa_fid: two,
        sa_valid: MDS_ATTR_UID,
        sa_uid: 500,
        ..MdtRecSetattr::default()
    };
    c.setattr(rec, &[]).await.unwrap();
    assert_eq!(
        swap_error(&c, one, two).await,
        Some(Errno::EPERM),
        "another owner"
    );
    assert_eq!((objects_of(&c, one).await, objects_of(&c, two).await), objects);
}
