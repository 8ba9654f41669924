//! Where an object has data, as a client asks that copies a file without its holes.

use bytes::Bytes;
use ldlm::{Enqueue, LockMode, Policy};
use rpc::{Request, RpcError};
use wire::{
    Errno, FIEMAP_EXTENT_LAST, FIEMAP_FLAG_SYNC, Fid, Fiemap, FiemapExtent, LlFiemapInfoKey, OBD_FL_SRVLOCK,
    OBD_MD_FLFLAGS, OST_GET_INFO, Obdo, Text, WireStruct,
};

use crate::fixture::Client;
use crate::{about, pattern, with_object};

const KIB: u64 = 1 << 10;

/// Asks as Lustre's client does: with the key, and with a map that has room for the extents. The reply has that room too.
async fn map(
    client: &Client,
    fid: Fid,
    asked: Fiemap,
    flags: u32,
) -> Result<(u32, Vec<FiemapExtent>), Errno> {
    let key = LlFiemapInfoKey {
        lfik_name: Text::truncated(wire::KEY_FIEMAP),
        lfik_oa: Obdo {
            o_valid: about(fid).o_valid | OBD_MD_FLFLAGS,
            o_flags: flags,
            ..about(fid)
        },
        lfik_fiemap: asked,
    };
    let extents = asked.fm_extent_count as usize;
    let mut room = asked.to_bytes().to_vec();
    room.resize(Fiemap::SIZE + extents.min(1024) * FiemapExtent::SIZE, 0);
    let request = Request {
        reply_len: 65536,
        ..Request::new(OST_GET_INFO, vec![key.to_bytes(), room.into()])
    };
    let reply = client
        .import()
        .call(request)
        .await
        .map_err(|e: RpcError| e.errno())?;
    let (head, rest) = reply.buf(1).split_at(Fiemap::SIZE);
    assert_eq!(rest.len(), extents * FiemapExtent::SIZE);
    let map = Fiemap::from_bytes(head).unwrap();
    assert_eq!(
        Fiemap {
            fm_mapped_extents: 0,
            ..map
        },
        asked
    );
    let found = rest
        .chunks(FiemapExtent::SIZE)
        .take(map.fm_mapped_extents as usize);
    let found = found.map(|e| FiemapExtent::from_bytes(e).unwrap());
    Ok((map.fm_mapped_extents, found.collect()))
}

fn asked(fm_start: u64, fm_length: u64, fm_extent_count: u32) -> Fiemap {
    Fiemap {
        fm_start,
        fm_length,
        fm_extent_count,
        fm_flags: FIEMAP_FLAG_SYNC,
        ..Fiemap::default()
    }
}

/// Of each extent where it begins, how long it is, and whether it is the last.
fn summary(extents: &[FiemapExtent]) -> Vec<(u64, u64, bool)> {
    let is_last = |e: &FiemapExtent| e.fe_flags & FIEMAP_EXTENT_LAST != 0;
    extents
        .iter()
        .map(|e| (e.fe_logical / KIB, e.fe_length / KIB, is_last(e)))
        .collect()
}

#[tokio::test]
async fn extents_are_what_lies_between_the_holes() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let mapped = async |asked| {
        let (count, extents) = map(&client, fid, asked, 0).await.unwrap();
        (count, summary(&extents))
    };
    assert_eq!(
        mapped(asked(0, u64::MAX, 10)).await,
        (0, vec![]),
        "an empty object"
    );
    for at in [64, 192] {
        client.write(fid, at * KIB, &pattern(64 << 10, 1)).await;
    }
    client.write(fid, 512 * KIB, b"tail").await;
    let all = vec![(64, 64, false), (192, 64, false), (512, 4, true)];
    assert_eq!(mapped(asked(0, u64::MAX, 10)).await, (3, all.clone()));
    assert_eq!(mapped(asked(0, u64::MAX, 0)).await, (3, vec![]), "only counted");
    // As many as there is room for, and the rest from there.
    assert_eq!(mapped(asked(0, u64::MAX, 2)).await, (2, all[..2].to_vec()));
    assert_eq!(
        mapped(asked(256 * KIB, u64::MAX, 2)).await,
        (1, all[2..].to_vec())
    );
    // A part of the object: an extent begins where the part does.
    assert_eq!(
        mapped(asked(96 * KIB, 64 * KIB, 9)).await,
        (1, vec![(96, 32, false)])
    );
    assert_eq!(mapped(asked(0, 64 * KIB, 9)).await, (0, vec![]));
    assert_eq!(mapped(asked(1 << 40, u64::MAX, 9)).await, (0, vec![]));
}

#[tokio::test]
async fn what_another_client_has_not_written_back_is_mapped() {
    let (node, _ost, _osp, a, fid) = with_object().await;
    let b = node.client("client-b").await;
    let whole = Policy::extent(0, u64::MAX);
    let enqueue = Enqueue::new(fid.res_id(), LockMode::Pw, whole);
    drop(a.locks.get().unwrap().enqueue(enqueue).await.unwrap());
    let writer = a.clone();
    *a.on_blocking.lock() = Some(Box::new(move |_| {
        let writer = writer.clone();
        Box::pin(async move {
            writer.write(fid, 64 * KIB, &pattern(64 << 10, 1)).await;
        })
    }));
    // A client with a lock of its own has seen to that already.
    assert_eq!(map(&b, fid, asked(0, u64::MAX, 9), 0).await.unwrap().0, 0);
    let (_, extents) = map(&b, fid, asked(0, u64::MAX, 9), OBD_FL_SRVLOCK).await.unwrap();
    assert_eq!(summary(&extents), [(64, 64, true)]);
    *a.on_blocking.lock() = None;
}

#[tokio::test]
async fn a_map_is_refused_of_no_object_with_too_many_extents_and_without_a_capability() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    let refused = async |fid, asked| map(&client, fid, asked, 0).await.unwrap_err();
    let never_made = Fid::new(fid.f_seq, 0x1_0000, 0);
    assert_eq!(refused(never_made, asked(0, 1, 1)).await, Errno::ENOENT);
    assert_eq!(refused(fid, asked(0, 1, u32::MAX)).await, Errno::EINVAL);
    let short = vec![wire::nul_terminated(b"fiemap"), Bytes::new()];
    let short = client.call(OST_GET_INFO, short).await;
    assert!(matches!(short, Err(RpcError::Status(Errno::EPROTO))));
    node.map_clients("capabilities", "1");
    assert_eq!(refused(fid, asked(0, 1, 1)).await, Errno::EACCES);
}
