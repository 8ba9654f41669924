//! Replays of requests with a lost effect, and files that are open across a restart.

use osd::Index;
use rpc::{EndReason, Target};
use testbase::mds_client::Client;
use wire::format::bufs::{DLM_REQ, OPEN_EA};
use wire::{
    Errno, Fid, LDLM_FL_INTENT_ONLY, LdlmRequest, MDS_ATTR_MODE, MDS_ATTR_SIZE, MDS_CLOSE, MDS_FMODE_READ,
    MDS_FMODE_WRITE, MDS_OPEN_CREAT, MDS_OPEN_LOCK, MDS_OPEN_VOLATILE, MdtBody, MdtRecSetattr, Transno,
    WireStruct, striping::PlainLayout,
};

use super::{Crashing, front::Executed, open_to_replay, opened_body};
use crate::fixture::wait_until;

const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE;

/// The object of a file with one stripe, by its layout.
fn object_of(layout: &[u8]) -> Fid {
    PlainLayout::parse(layout).unwrap().objects[0].l_ost_oi.fid()
}

fn chmod(fid: Fid, mode: u32) -> MdtRecSetattr {
    MdtRecSetattr {
        sa_fid: fid,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: mode,
        ..MdtRecSetattr::default()
    }
}

async fn exists(client: &Client, name: &str) -> bool {
    client.readdir(Fid::ROOT).await.iter().any(|n| n == name)
}

/// All requests so far that changed the store or opened a file, as the client replays them.
fn to_replay(c: &Crashing) -> Vec<Executed> {
    let is_open = |request: &Executed| request.opc == wire::LDLM_ENQUEUE;
    let all = c.front.executed();
    all.iter()
        .map(|request| match is_open(request) {
            true => open_to_replay(request),
            false => request.clone(),
        })
        .collect()
}

#[tokio::test]
async fn replayed_open_creates_the_file_with_its_layout_and_handle_again() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let disk = c.synced().await;
    let created = client.open(Fid::ROOT, "file", CREATE).await;
    let open = to_replay(&c).pop().unwrap();
    c.crash(&disk).await;
    let committed = c.f.mdt.last_committed();
    let reply = c.front.replay(&client, &open).await.unwrap();
    let body: MdtBody = reply.get(2).unwrap();
    assert_eq!(body.mbo_fid1, created.fid());
    assert_eq!(body.mbo_open_handle.cookie, created.handle());
    assert_eq!(reply.buf(3), created.reply.buf(3));
    assert_eq!(reply.body.pb_transno, open.transno.0);
    // The reply is kept again, in case that the MDT crashes again.
    assert_eq!(c.kept(&open).unwrap().transno, open.transno);
    c.index.sync().await.unwrap();
    assert_eq!(c.f.mdt.last_committed(), committed, "other replays are missing");
    c.recovered().await;
    assert!(c.f.mdt.last_committed() > open.transno);
    client.close(created.fid(), created.handle()).await.unwrap();
}

#[tokio::test]
async fn replays_in_order_restore_names_attributes_and_versions() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    client.mkdir(Fid::ROOT, "old").await;
    let disk = c.synced().await;
    let before = c.front.executed().len();
    let dir = client.mkdir(Fid::ROOT, "dir").await;
    client.make(dir, "symlink", 0o120777, "target").await.unwrap();
    client.make(dir, "fifo", 0o010644, "").await.unwrap();
    let file = client.open(dir, "file", CREATE).await;
    client.setattr(chmod(file.fid(), 0o400), &[]).await.unwrap();
    client.link(file.fid(), Fid::ROOT, "link").await.unwrap();
    client.setxattr(file.fid(), "user.a", b"b").await.unwrap();
    client
        .rename((dir, "file"), (Fid::ROOT, "renamed"))
        .await
        .unwrap();
    client.unlink(dir, "fifo", false).await.unwrap();
    client.unlink(Fid::ROOT, "old", true).await.unwrap();
    let truncation = MdtRecSetattr {
        sa_fid: file.fid(),
        sa_valid: MDS_ATTR_SIZE,
        sa_size: 7,
        ..MdtRecSetattr::default()
    };
    client.setattr(truncation, &[]).await.unwrap();
    client.close(file.fid(), file.handle()).await.unwrap();
    let expected = c.index.image().name_space();
    let requests = to_replay(&c).split_off(before);
    assert_eq!(requests.len(), 12);
    c.crash(&disk).await;
    for request in &requests {
        let reply = c.front.replay(&client, request).await.unwrap();
        assert_eq!(reply.body.pb_transno, request.transno.0);
        if request.opc != MDS_CLOSE {
            assert_eq!(reply.body.pb_pre_versions, request.reply.pre_versions);
        }
    }
    assert_eq!(c.index.image().name_space(), expected);
    c.recovered().await;
    let later = client.open(dir, "later", CREATE).await;
    assert!(later.reply.body.pb_transno > requests[11].transno.0);
}

#[tokio::test]
async fn new_files_do_not_get_the_objects_of_replayed_creates() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let disk = c.synced().await;
    for n in 0..40 {
        client.open(Fid::ROOT, &format!("file{n}"), CREATE).await;
    }
    let requests = to_replay(&c);
    let objects: Vec<u32> = requests
        .iter()
        .map(|open| object_of(&open.bufs[OPEN_EA - 1]).f_oid)
        .collect();
    let last = *objects.iter().max().unwrap();
    c.f.osts[0].orphan_cleanups.lock().clear();
    c.crash(&disk).await;
    // The creates of another client are lost for ever.
    for request in requests
        .iter()
        .filter(|open| open.transno.0 % 2 == requests[39].transno.0 % 2)
    {
        c.front.replay(&client, request).await.unwrap();
    }
    assert!(c.f.osts[0].orphan_cleanups.lock().is_empty());
    c.recovered().await;
    let later = client.open(Fid::ROOT, "later", CREATE).await;
    assert!(object_of(later.reply.buf(3)).f_oid > last);
    assert_eq!(*c.f.osts[0].orphan_cleanups.lock(), [last]);
    // Objects without a file, and only these, are destroyed.
    wait_until(|| {
        c.index.commit();
        c.f.osts[0].destroyed.lock().len() >= 20
    })
    .await;
    let destroyed: Vec<u32> = c.f.osts[0].destroyed.lock().iter().map(|o| o.f_oid).collect();
    let lost: Vec<u32> = objects.iter().copied().step_by(2).collect();
    assert!(
        lost.iter().all(|oid| destroyed.contains(oid)),
        "{lost:?} {destroyed:?}"
    );
    assert!(
        objects
            .iter()
            .skip(1)
            .step_by(2)
            .all(|oid| !destroyed.contains(oid))
    );
}

#[tokio::test]
async fn open_is_replayed_although_the_mode_forbids_it_now() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    *client.creds.lock() = (0, 0, u32::MAX);
    client.setattr(chmod(Fid::ROOT, 0o777), &[]).await.unwrap();
    *client.creds.lock() = (1000, 1000, 0);
    let file = client.open(Fid::ROOT, "file", CREATE).await;
    let open = to_replay(&c).pop().unwrap();
    client.setattr(chmod(file.fid(), 0), &[]).await.unwrap();
    let disk = c.synced().await;
    c.crash(&disk).await;
    let reply = c.front.replay(&client, &open).await.unwrap();
    assert_eq!(
        opened_body(&open.reply).mbo_fid1,
        reply.get::<MdtBody>(2).unwrap().mbo_fid1
    );
    c.recovered().await;
    let truncation = MdtRecSetattr {
        sa_fid: file.fid(),
        sa_valid: MDS_ATTR_SIZE | wire::MDS_ATTR_FROM_OPEN,
        ..MdtRecSetattr::default()
    };
    client.setattr(truncation, &[]).await.unwrap();
    // After recovery, the flag of a replay grants nothing.
    let original = c.front.executed().swap_remove(1);
    let refused = c.front.replay(&client, &original).await.unwrap();
    let rep: wire::LdlmReply = refused.get(1).unwrap();
    assert_eq!(rep.intent_status(), Errno::EACCES.status());
    assert_ne!(refused.body.pb_transno, open.transno.0);
}

#[tokio::test]
async fn removed_file_survives_the_restart_only_if_its_open_is_replayed() {
    for is_replayed in [true, false] {
        let mut c = Crashing::new().await;
        let client = c.client().await;
        let file = client.open(Fid::ROOT, "file", CREATE).await;
        let object = object_of(file.reply.buf(3));
        let open = to_replay(&c).pop().unwrap();
        client.unlink(Fid::ROOT, "file", false).await.unwrap();
        c.front.end(EndReason::TargetStops).await;
        let disk = c.synced().await;
        c.crash(&disk).await;
        if is_replayed {
            c.front.replay(&client, &open).await.unwrap();
        }
        c.recovered().await;
        if is_replayed {
            assert!(client.getxattr(file.fid(), "trusted.lma").await.is_ok());
            client.close(file.fid(), file.handle()).await.unwrap();
        }
        assert_eq!(
            client.getxattr(file.fid(), "trusted.lma").await,
            Err(Errno::ENOENT)
        );
        wait_until(|| {
            c.index.commit();
            c.f.osts[0].destroyed.lock().contains(&object)
        })
        .await;
    }
}

#[tokio::test]
async fn end_of_another_client_during_recovery_destroys_no_file() {
    let mut c = Crashing::new().await;
    let (first, second) = (c.client().await, c.client().await);
    let file = first.open(Fid::ROOT, "file", CREATE).await;
    let opened = second.open(Fid::ROOT, "file", MDS_FMODE_READ).await;
    let opens = to_replay(&c);
    first.unlink(Fid::ROOT, "file", false).await.unwrap();
    let disk = c.synced().await;
    c.crash(&disk).await;
    c.front.replay(&first, &opens[0]).await.unwrap();
    c.front.end(EndReason::Evicted).await;
    let reply = c.front.replay(&second, &opens[1]).await.unwrap();
    assert_eq!(reply.get::<MdtBody>(2).unwrap().mbo_fid1, file.fid());
    c.recovered().await;
    second.close(opened.fid(), opened.handle()).await.unwrap();
    assert_eq!(
        second.getxattr(file.fid(), "trusted.lma").await,
        Err(Errno::ENOENT)
    );
}

#[tokio::test]
async fn replays_of_executed_requests_and_of_unknown_handles_do_no_harm() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let file = client.open(Fid::ROOT, "file", CREATE).await;
    client.unlink(Fid::ROOT, "file", false).await.unwrap();
    client.close(file.fid(), file.handle()).await.unwrap();
    client.mkdir(Fid::ROOT, "dir").await;
    let requests = to_replay(&c);
    let disk = c.index.image();
    c.crash(&disk).await;
    let [_, unlink, close, mkdir] = &requests[..] else {
        panic!("{} requests", requests.len());
    };
    assert_eq!(c.front.replay(&client, unlink).await.unwrap_err(), Errno::ENOENT);
    let closed = c.front.replay(&client, close).await.unwrap();
    assert_eq!(Transno(closed.body.pb_transno), close.transno);
    assert_eq!(c.front.replay(&client, mkdir).await.unwrap_err(), Errno::EEXIST);
    assert_eq!(c.index.image().name_space(), disk.name_space());
    c.recovered().await;
    assert!(exists(&client, "dir").await && !exists(&client, "file").await);
}

#[tokio::test]
async fn replayed_layout_with_foreign_objects_is_refused() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let disk = c.synced().await;
    client.open(Fid::ROOT, "file", CREATE).await;
    let open = to_replay(&c).pop().unwrap();
    c.crash(&disk).await;
    for (seq, oid) in [(0x2_4000_0401, 2), (0x2_4000_0400, u64::from(u32::MAX))] {
        let mut forged = open.clone();
        let ea = &mut forged.bufs[OPEN_EA - 1];
        let mut layout = PlainLayout::parse(ea).unwrap();
        layout.objects[0].l_ost_oi = Fid::new(seq, oid as u32, 0).into();
        *ea = layout.build();
        let reply = c.front.replay(&client, &forged).await.unwrap();
        let rep: wire::LdlmReply = reply.get(1).unwrap();
        assert_eq!(rep.intent_status(), Errno::EINVAL.status());
    }
    c.recovered().await;
    assert!(!exists(&client, "file").await);
}

#[tokio::test]
async fn replayed_open_sets_the_layout_of_an_existing_file_again() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    client.make(Fid::ROOT, "file", 0o100666, "").await.unwrap();
    let disk = c.synced().await;
    let opened = client.open(Fid::ROOT, "file", MDS_FMODE_WRITE).await;
    assert!(!opened.reply.buf(3).is_empty());
    let open = to_replay(&c).pop().unwrap();
    c.crash(&disk).await;
    let reply = c.front.replay(&client, &open).await.unwrap();
    let body: MdtBody = reply.get(2).unwrap();
    assert_eq!(
        (reply.buf(3), body.mbo_open_handle.cookie),
        (opened.reply.buf(3), opened.handle())
    );
    c.recovered().await;
    assert_eq!(client.layout(opened.fid()).await.buf(2), opened.reply.buf(3));
}

#[tokio::test]
async fn replayed_volatile_file_lives_until_its_close() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let disk = c.synced().await;
    let created = client
        .open(Fid::ROOT, "volatile", CREATE | MDS_OPEN_VOLATILE)
        .await;
    let open = to_replay(&c).pop().unwrap();
    c.crash(&disk).await;
    c.front.replay(&client, &open).await.unwrap();
    c.recovered().await;
    assert!(client.getxattr(created.fid(), "trusted.lma").await.is_ok());
    client.close(created.fid(), created.handle()).await.unwrap();
    let gone = client.getxattr(created.fid(), "trusted.lma").await;
    assert_eq!(gone, Err(Errno::ENOENT));
}

#[tokio::test]
async fn open_with_intent_only_gets_no_lock() {
    let c = Crashing::new().await;
    let client = c.client().await;
    client.mkdir(Fid::ROOT, "dir").await;
    let locked = client
        .open(Fid::ROOT, "dir", MDS_FMODE_READ | MDS_OPEN_LOCK)
        .await;
    assert!(locked.has_lock());
    let mut bufs = c.front.executed().pop().unwrap().bufs;
    let mut dlm = LdlmRequest::from_bytes(&bufs[DLM_REQ - 1]).unwrap();
    dlm.lock_flags |= LDLM_FL_INTENT_ONLY as u32;
    bufs[DLM_REQ - 1] = dlm.to_bytes();
    let reply = client.call(wire::LDLM_ENQUEUE, bufs).await.unwrap();
    let rep: wire::LdlmReply = reply.get(1).unwrap();
    assert_eq!((rep.intent_status(), rep.lock_handle.cookie), (0, 0));
    assert_ne!(reply.get::<MdtBody>(2).unwrap().mbo_open_handle.cookie, 0);
}
