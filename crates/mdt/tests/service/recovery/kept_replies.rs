//! Requests with a durable effect and a lost reply: the MDT does not execute them again.

use osd::clients::ClientRecords;
use rpc::EndReason;
use testbase::Wait;
use wire::{
    DISP_OPEN_CREATE, DISP_OPEN_OPEN, ELDLM_LOCK_ABORTED, Fid, LdlmReply, MDS_FMODE_READ, MDS_FMODE_WRITE,
    MDS_OPEN_CREAT, MdtBody,
};

use super::Crashing;

const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE;

#[tokio::test]
async fn lost_reply_of_a_durable_create_is_rebuilt() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let dir = client.mkdir(Fid::ROOT, "d").await;
    let mkdir = c.front.executed().pop().unwrap();
    let disk = c.index.image();
    c.crash(&disk).await;
    let kept = c.kept(&mkdir).unwrap();
    assert_eq!(
        (kept.transno, kept.status, kept.pre_versions),
        (mkdir.transno, 0, mkdir.reply.pre_versions)
    );
    let reply = c.front.resend(&client, &mkdir, kept).await.unwrap();
    assert_eq!(reply.body.pb_transno, mkdir.transno.0);
    assert_eq!(reply.get::<MdtBody>(1).unwrap().mbo_fid1, dir);
    assert_eq!(reply.body.pb_pre_versions, mkdir.reply.pre_versions);
    assert_eq!(c.index.image().name_space(), disk.name_space());
}

#[tokio::test]
async fn rebuilt_open_has_a_new_handle_and_creates_nothing() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let created = client.open(Fid::ROOT, "file", CREATE).await;
    let open = c.front.executed().pop().unwrap();
    let disk = c.index.image();
    c.crash(&disk).await;
    let kept = c.kept(&open).unwrap();
    let reply = c.front.resend(&client, &open, kept).await.unwrap();
    let rep: LdlmReply = reply.get(1).unwrap();
    let body: MdtBody = reply.get(2).unwrap();
    let expected = DISP_OPEN_CREATE | DISP_OPEN_OPEN;
    assert_eq!(rep.lock_policy_res1 & expected, expected);
    assert_eq!(
        (rep.intent_status(), reply.status),
        (0, ELDLM_LOCK_ABORTED as i32),
        "success without a lock"
    );
    assert_eq!(
        (body.mbo_fid1, reply.buf(3)),
        (created.fid(), created.reply.buf(3))
    );
    assert_eq!(reply.body.pb_transno, open.transno.0);
    assert_ne!(body.mbo_open_handle.cookie, created.handle());
    assert_eq!(c.index.image().name_space(), disk.name_space());
    client
        .close(created.fid(), body.mbo_open_handle.cookie)
        .await
        .unwrap();
}

#[tokio::test]
async fn each_slot_keeps_the_reply_to_its_last_change() {
    let c = Crashing::new().await;
    let client = c.client().await;
    client.mkdir(Fid::ROOT, "a").await;
    client.mkdir(Fid::ROOT, "b").await;
    let opened = client.open(Fid::ROOT, "b", MDS_FMODE_READ).await;
    let executed = c.front.executed();
    let [first, second, open] = &executed[..] else {
        panic!("{} requests", executed.len());
    };
    assert_eq!((first.tag, second.tag), (1, 1));
    assert!(c.kept(first).is_none() && c.kept(second).is_some());
    // Neither the open nor the close changes the store.
    client.close(opened.fid(), opened.handle()).await.unwrap();
    assert!(c.kept(open).is_none() && c.kept(second).is_some());
}

#[tokio::test]
async fn disconnected_clients_have_no_records() {
    let c = Crashing::new().await;
    let client = c.client().await;
    client.mkdir(Fid::ROOT, "d").await;
    let records = || {
        ClientRecords::load(c.index.clone())
            .wait()
            .unwrap()
            .known(&[])
            .wait()
            .unwrap()
    };
    assert_eq!(records()[0].uuid, client.uuid);
    assert_eq!(records()[0].replies.len(), 1);
    c.front.end(EndReason::TargetStops).await;
    assert_eq!(records().len(), 1);
    c.front.end(EndReason::Disconnected).await;
    assert!(records().is_empty());
}
