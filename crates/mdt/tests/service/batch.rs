//! Tests of `MDS_BATCH`: each lookup has its own result, and none waits.

use std::sync::atomic::Ordering::SeqCst;

use bytes::{BufMut, Bytes, BytesMut};
use rpc::{Bulk, ReplyMsg, Request};
use wire::batch::{BATCH_MAX, BatchBody, build_requests, parse_replies};
use wire::{
    BUT_GETATTR, BUT_HEADER_MAGIC, ButUpdateBuffer, ButUpdateHeader, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, Errno,
    Fid, LdlmReply, MDS_ATTR_MODE, MDS_BATCH, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MdtBody, MdtRecSetattr, Message, WireStruct,
};

use crate::fixture::{Fixture, wait_until};
use testbase::mds_client::Client;

/// The lock bits that a lookup of anything but a regular file grants.
const BITS: u64 = MDS_INODELOCK_LOOKUP | MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM;
/// The lock bits that a lookup of a regular file grants.
const FILE_BITS: u64 = BITS | MDS_INODELOCK_LAYOUT;

/// A lookup of each name.
fn lookups(c: &Client, dir: Fid, names: &[&str]) -> Vec<Message> {
    names.iter().map(|name| c.sub_request(dir, name)).collect()
}

async fn send(c: &Client, bufs: Vec<Bytes>, bulk: Option<Bytes>) -> Result<ReplyMsg, Errno> {
    let request = Request {
        reply_len: 64 << 10,
        return_error_replies: true,
        bulk: bulk.map(|data| Bulk::Source(vec![data.into()])),
        ..Request::new(MDS_BATCH, bufs)
    };
    Ok(c.import.call(request).await?)
}

/// Sends a batch within the request.
async fn send_inline(c: &Client, requests: &[Message]) -> ReplyMsg {
    send(c, vec![BatchBody::inline(requests, 64 << 10), Bytes::new()], None)
        .await
        .unwrap()
}

/// Sends a batch by bulk, in pieces padded to pages, as Lustre's clients send long batches.
async fn send_by_bulk(c: &Client, pieces: &[&[Message]]) -> ReplyMsg {
    let (mut bulk, mut sizes) = (BytesMut::new(), BytesMut::new());
    for piece in pieces {
        let start = bulk.len();
        bulk.put(build_requests(piece));
        bulk.resize(bulk.len().next_multiple_of(4096), 0);
        let buffer = ButUpdateBuffer {
            bub_size: (bulk.len() - start) as u32,
            bub_padding: 0,
        };
        sizes.put(buffer.to_bytes());
    }
    let header = ButUpdateHeader {
        buh_magic: BUT_HEADER_MAGIC,
        buh_count: pieces.len() as u32,
        buh_reply_size: 64 << 10,
        ..ButUpdateHeader::default()
    };
    send(c, vec![header.to_bytes(), sizes.freeze()], Some(bulk.freeze()))
        .await
        .unwrap()
}

/// The status, the attributes and the lock bits of each lookup.
fn results_of(reply: &ReplyMsg) -> Vec<(i32, MdtBody, u64)> {
    let result_of = |m: Message| {
        let (rep, body): (LdlmReply, MdtBody) = (m.get(0).unwrap(), m.get(1).unwrap());
        let exists = rep.lock_policy_res1 & DISP_LOOKUP_POS != 0;
        assert_eq!(exists, rep.lock_handle.cookie != 0);
        assert_eq!(m.bufs.len(), 8);
        if exists {
            assert_eq!(Fid::from_res_id(&rep.lock_desc.l_resource.lr_name), body.mbo_fid1);
        }
        (m.opc as i32, body, rep.lock_desc.l_policy_data.bits())
    };
    parse_replies(&reply.bytes(1))
        .unwrap()
        .into_iter()
        .map(result_of)
        .collect()
}

/// The handle of the lock of the i-th lookup.
fn lock_handle(reply: &ReplyMsg, i: usize) -> u64 {
    let rep: LdlmReply = parse_replies(&reply.bytes(1)).unwrap()[i].get(0).unwrap();
    rep.lock_handle.cookie
}

/// The values of all parameters that match, one after the other.
fn param_values(f: &Fixture, pattern: &str) -> String {
    let params = f.params.get(pattern);
    assert!(!params.is_empty(), "{pattern}");
    params.into_iter().map(|(_, value)| value).collect()
}

fn lock_counts(f: &Fixture) -> String {
    param_values(f, "ldlm.namespaces.*.lock_count")
}

#[tokio::test]
async fn each_lookup_of_a_batch_has_its_own_result() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let file = c.make(d, "file", 0o100640, "").await.unwrap();
    let link = c.make(d, "link", 0o120777, "target").await.unwrap();
    let sub = c.mkdir(d, "sub").await;
    let requests = lookups(&c, d, &["file", "missing", "link", "sub"]);
    let reply = send_inline(&c, &requests).await;
    assert_eq!(reply.status, 0);
    let results = results_of(&reply);
    let expected = [
        (0, file, 0o100640, FILE_BITS),
        (Errno::ENOENT.status(), Fid::ZERO, 0, 0),
        (0, link, 0o120777, BITS),
        (0, sub, 0o040755, BITS),
    ];
    let results: Vec<_> = results
        .iter()
        .map(|(rc, body, bits)| (*rc, body.mbo_fid1, body.mbo_mode, *bits))
        .collect();
    assert_eq!(results, expected);
    let missing: LdlmReply = parse_replies(&reply.bytes(1)).unwrap()[1].get(0).unwrap();
    assert_ne!(missing.lock_policy_res1 & DISP_LOOKUP_NEG, 0);
    let separate = c.getattr(d, "file").await.body;
    assert_eq!(results_of(&reply)[0].1, separate);
    let hidden = c.make(Fid::ROOT, "hidden", 0o040700, "").await.unwrap();
    *c.creds.lock() = (501, 501, 0);
    let refused = results_of(&send_inline(&c, &lookups(&c, hidden, &["x"])).await);
    assert_eq!(refused[0].0, Errno::EACCES.status());
}

#[tokio::test]
async fn batch_in_bulk_pieces_executes_every_lookup() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let names: Vec<String> = (0..100).map(|i| format!("f{i}")).collect();
    for name in &names {
        c.make(d, name, 0o010644, "").await.unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let requests = lookups(&c, d, &names);
    let (first, rest) = requests.split_at(7);
    let reply = send_by_bulk(&c, &[first, rest]).await;
    let results = results_of(&reply);
    assert_eq!((reply.status, results.len()), (0, 100));
    assert!(results.iter().all(|(rc, _, bits)| (*rc, *bits) == (0, BITS)));
    let stats = f.rpc.stats();
    let handled = |name: &str| {
        stats
            .iter()
            .filter(|s| s.name == name)
            .map(|s| s.handled)
            .sum::<u64>()
    };
    assert_eq!(handled("mdt_out"), 1);
    assert!(param_values(&f, "mdt.*.md_stats").contains("100 samples [usecs]"));
}

#[tokio::test]
async fn unavailable_lock_is_ebusy_and_blocks_no_other_lookup() {
    let f = Fixture::new(0).await;
    let (c, holder, changer) = (f.client().await, f.client().await, f.client().await);
    let d = c.mkdir(Fid::ROOT, "d").await;
    let x = c.make(d, "x", 0o010666, "").await.unwrap();
    c.make(d, "y", 0o010666, "").await.unwrap();
    holder.ignores_callbacks.store(true, SeqCst);
    let held = holder.getattr(d, "x").await.lock_handle;
    let rec = MdtRecSetattr {
        sa_fid: x,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o600,
        ..Default::default()
    };
    let change = tokio::spawn(async move { changer.setattr(rec, &[]).await });
    wait_until(|| !holder.revoked.lock().is_empty()).await;
    let results = results_of(&send_inline(&c, &lookups(&c, d, &["x", "y"])).await);
    assert_eq!(
        results.iter().map(|t| t.0).collect::<Vec<_>>(),
        [Errno::EBUSY.status(), 0]
    );
    assert!(!change.is_finished());
    holder.cancel(held).await;
    change.await.unwrap().unwrap();
    let results = results_of(&send_inline(&c, &lookups(&c, d, &["x", "y"])).await);
    assert_eq!(results.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 0]);
}

#[tokio::test]
async fn resent_batch_grants_each_lock_once() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    for name in ["x", "y"] {
        c.make(d, name, 0o010666, "").await.unwrap();
    }
    let before = lock_counts(&f);
    f.rpc.faults().lose_replies(MDS_BATCH, 1);
    let reply = send_inline(&c, &lookups(&c, d, &["x", "y"])).await;
    assert!(results_of(&reply).iter().all(|t| t.0 == 0));
    for i in 0..2 {
        c.try_cancel(lock_handle(&reply, i)).await.unwrap();
    }
    assert_eq!(lock_counts(&f), before);
}

#[tokio::test]
async fn other_requests_end_a_batch_and_malformed_batches_are_eproto() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    c.mkdir(Fid::ROOT, "d").await;
    let mut requests = lookups(&c, Fid::ROOT, &["d", "d", "d"]);
    // An operation other than BUT_GETATTR.
    requests[1].opc = 2;
    let reply = send_inline(&c, &requests).await;
    assert_eq!(
        (reply.status, results_of(&reply).len()),
        (Errno::ENOTSUPP.status(), 1)
    );
    requests[1] = Message {
        opc: BUT_GETATTR,
        bufs: vec![Bytes::new()],
        ..Message::default()
    };
    let reply = send_inline(&c, &requests).await;
    assert_eq!(
        (reply.status, results_of(&reply).len()),
        (Errno::EPROTO.status(), 1)
    );
    let good = BatchBody::inline(&lookups(&c, Fid::ROOT, &["d"]), 4096);
    // The offsets of buh_magic, buh_inline_length, burq_magic, burq_count and the lookup's
    // lm_magic.
    for field in [0, 8, 24, 28, 40] {
        let (mut bad, byte) = (good.to_vec(), field + 1);
        bad[byte] ^= 0x55;
        let refused = send(&c, vec![bad.into(), Bytes::new()], None).await;
        let status = refused.map_or_else(Errno::status, |r| r.status);
        assert_eq!(status, Errno::EPROTO.status(), "byte {byte}");
    }
    let many = vec![c.sub_request(Fid::ROOT, "d"); BATCH_MAX / 2 + 1];
    let refused = send_by_bulk(&c, &[&many, &many]).await;
    assert_eq!(refused.status, Errno::EPROTO.status());
    assert_eq!(c.getattr(Fid::ROOT, "d").await.status, 0);
}
