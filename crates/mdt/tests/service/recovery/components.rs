//! Composite layouts through a crash of the MDT.

use bytes::Bytes;
use mdt::layout::{self, composite::EOF};
use rpc::Target;
use wire::{Fid, LAYOUT_INTENT_WRITE, LDLM_ENQUEUE, MDS_FMODE_READ};

use super::{Crashing, open_to_replay};
use crate::components::{create, request, three};

#[tokio::test]
async fn objects_of_a_component_are_on_disk_before_the_client_knows_them() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let file = create(&client, "file", &three(EOF)).await.fid();
    let answer = request(&client, file, LAYOUT_INTENT_WRITE, 2 << 20, 3 << 20).await;
    assert_eq!(c.f.mdt.last_committed().0, answer.transno);
    let executed = c.front.executed().last().unwrap().clone();
    let disk = c.index.image();
    c.crash(&disk).await;
    // The client may not have got the reply: it sends the request again.
    let reply = c.front.replay(&client, &executed).await.unwrap();
    assert_eq!(reply.buf(2), answer.layout);
    assert_eq!(reply.body.pb_transno, answer.transno);
    c.recovered().await;
    let again = request(&client, file, LAYOUT_INTENT_WRITE, 2 << 20, 3 << 20).await;
    assert_eq!((again.transno, again.layout), (0, answer.layout));
}

#[tokio::test]
async fn replayed_create_restores_a_composite_layout() {
    let mut c = Crashing::new().await;
    let client = c.client().await;
    let disk = c.synced().await;
    let created = create(&client, "file", &three(EOF)).await;
    let open = c
        .front
        .executed()
        .into_iter()
        .rfind(|r| r.opc == LDLM_ENQUEUE)
        .unwrap();
    c.crash(&disk).await;
    let reply = c.front.replay(&client, &open_to_replay(&open)).await.unwrap();
    assert_eq!(reply.buf(3), created.reply.buf(3));
    c.recovered().await;
    let opened = client.open(Fid::ROOT, "file", MDS_FMODE_READ).await;
    assert_eq!(opened.reply.bytes(3), created.reply.bytes(3));
    let used = layout::objects(&opened.reply.bytes(3)).unwrap();
    let other = create(&client, "other", &three(EOF)).await;
    let other: Bytes = other.reply.bytes(3);
    assert_ne!(layout::objects(&other).unwrap()[0], used[0]);
}
