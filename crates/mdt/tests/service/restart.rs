//! Tests of the state after a restart and after a crash.

use mdt::store::keys;
use osd::Batch;
use wire::{Fid, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_CREAT, striping::PlainLayout};

use crate::fixture::{Fixture, wait_until};

const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE;

#[tokio::test]
async fn names_and_ids_survive_a_restart() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let created = c.open(d, "file", CREATE).await;
    let md = PlainLayout::parse(created.reply.buf(3)).unwrap();
    let last_transno = created.reply.body.pb_transno;
    c.disconnect().await;
    f.restart().await;
    let c = f.client().await;
    assert_eq!(c.getattr(Fid::ROOT, "d").await.fid(), d);
    let again = c.open(d, "file", MDS_FMODE_READ).await;
    assert_eq!(PlainLayout::parse(again.reply.buf(3)).unwrap(), md);
    assert!(again.reply.body.pb_transno > last_transno);
    let other = c.open(d, "other", CREATE).await;
    let object = PlainLayout::parse(other.reply.buf(3)).unwrap().objects[0]
        .l_ost_oi
        .fid();
    assert!(object.f_oid > md.objects[0].l_ost_oi.fid().f_oid);
    assert_eq!(
        *f.osts[0].orphan_cleanups.lock(),
        [md.objects[0].l_ost_oi.fid().f_oid]
    );
    assert_ne!(
        c.new_fid().f_seq,
        created.fid().f_seq,
        "sequences are allocated once"
    );
}

#[tokio::test]
async fn files_removed_while_open_are_destroyed_after_a_crash() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE).await;
    let object = PlainLayout::parse(created.reply.buf(3)).unwrap().objects[0]
        .l_ost_oi
        .fid();
    c.unlink(Fid::ROOT, "file", false).await.unwrap();
    assert!(f.osts[0].destroyed.lock().is_empty());
    f.crash().await;
    wait_until(|| f.osts[0].destroyed.lock().contains(&object)).await;
    let c = f.client().await;
    assert_eq!(c.readdir(Fid::ROOT).await, [".", ".."]);
}

#[tokio::test]
async fn stop_is_clean_only_after_a_complete_scan_for_orphan_objects() {
    let mut f = Fixture::new(1).await;
    let clean_stop = keys::setting("osp.exact");
    let unreadable = keys::inode(Fid::new(0x2_0000_0401, 77, 0));
    f.client().await.open(Fid::ROOT, "file", CREATE).await;
    let mut batch = Batch::new();
    batch.put(unreadable, "?");
    f.index.apply(batch).unwrap();
    f.crash().await;
    f.mdt.stop().await;
    assert_eq!(f.index.get(&clean_stop).await.unwrap(), None);
}
