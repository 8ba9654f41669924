//! `OST_GET_INFO` with the key `fiemap`, as a client sends it to copy a file without its holes.

use bytes::Bytes;
use ldlm::{Enqueue, LockMode, Policy};
use rpc::{Request, RpcError};
use wire::{
    Errno, FIEMAP_EXTENT_LAST, FIEMAP_FLAG_SYNC, Fid, Fiemap, FiemapExtent, LlFiemapInfoKey, OBD_FL_SRVLOCK,
    OBD_MD_FLFLAGS, OST_GET_INFO, Obdo, Text, WireStruct,
};

use crate::fixture::Client;
use crate::{obdo, pattern, with_object};

const KIB: u64 = 1 << 10;

/// Sends the request of Lustre's client: the key, and a map with space for the extents. The reply
/// has the same space. Returns the number of extents, and the extents in the reply.
async fn map(
    client: &Client,
    fid: Fid,
    request: Fiemap,
    flags: u32,
) -> Result<(u32, Vec<FiemapExtent>), Errno> {
    let key = LlFiemapInfoKey {
        lfik_name: Text::truncated(wire::KEY_FIEMAP),
        lfik_oa: Obdo {
            o_valid: obdo(fid).o_valid | OBD_MD_FLFLAGS,
            o_flags: flags,
            ..obdo(fid)
        },
        lfik_fiemap: request,
    };
    let extents = request.fm_extent_count as usize;
    let mut space = request.to_bytes().to_vec();
    space.resize(Fiemap::SIZE + extents.min(1024) * FiemapExtent::SIZE, 0);
    let message = Request {
        reply_len: 65536,
        ..Request::new(OST_GET_INFO, vec![key.to_bytes(), space.into()])
    };
    let reply = client
        .import()
        .call(message)
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
        request
    );
    let found = rest
        .chunks(FiemapExtent::SIZE)
        .take(map.fm_mapped_extents as usize);
    let found = found.map(|e| FiemapExtent::from_bytes(e).unwrap());
    Ok((map.fm_mapped_extents, found.collect()))
}

fn request(fm_start: u64, fm_length: u64, fm_extent_count: u32) -> Fiemap {
    Fiemap {
        fm_start,
        fm_length,
        fm_extent_count,
        fm_flags: FIEMAP_FLAG_SYNC,
        ..Fiemap::default()
    }
}

/// Offset and length of each extent in KiB, and whether it is the last.
fn summary(extents: &[FiemapExtent]) -> Vec<(u64, u64, bool)> {
    let is_last = |e: &FiemapExtent| e.fe_flags & FIEMAP_EXTENT_LAST != 0;
    extents
        .iter()
        .map(|e| (e.fe_logical / KIB, e.fe_length / KIB, is_last(e)))
        .collect()
}

#[tokio::test]
async fn extents_are_the_data_between_holes() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let mapped = async |request| {
        let (count, extents) = map(&client, fid, request, 0).await.unwrap();
        (count, summary(&extents))
    };
    assert_eq!(
        mapped(request(0, u64::MAX, 10)).await,
        (0, vec![]),
        "an empty object"
    );
    for at in [64, 192] {
        client.write(fid, at * KIB, &pattern(64 << 10, 1)).await;
    }
    client.write(fid, 512 * KIB, b"tail").await;
    let all = vec![(64, 64, false), (192, 64, false), (512, 4, true)];
    assert_eq!(mapped(request(0, u64::MAX, 10)).await, (3, all.clone()));
    assert_eq!(mapped(request(0, u64::MAX, 0)).await, (3, vec![]), "only counted");
    // As many extents as fit, then the rest.
    assert_eq!(mapped(request(0, u64::MAX, 2)).await, (2, all[..2].to_vec()));
    assert_eq!(
        mapped(request(256 * KIB, u64::MAX, 2)).await,
        (1, all[2..].to_vec())
    );
    // A part of the object: the extent begins at the part's start.
    assert_eq!(
        mapped(request(96 * KIB, 64 * KIB, 9)).await,
        (1, vec![(96, 32, false)])
    );
    assert_eq!(mapped(request(0, 64 * KIB, 9)).await, (0, vec![]));
    assert_eq!(mapped(request(1 << 40, u64::MAX, 9)).await, (0, vec![]));
}

#[tokio::test]
async fn data_cached_by_another_client_is_mapped() {
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
    // Without SRVLOCK the server takes no lock and does not wait for the writer's cache.
    assert_eq!(map(&b, fid, request(0, u64::MAX, 9), 0).await.unwrap().0, 0);
    let (_, extents) = map(&b, fid, request(0, u64::MAX, 9), OBD_FL_SRVLOCK)
        .await
        .unwrap();
    assert_eq!(summary(&extents), [(64, 64, true)]);
    *a.on_blocking.lock() = None;
}

#[tokio::test]
async fn fiemap_fails_for_missing_objects_too_many_extents_and_missing_capabilities() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    let refused = async |fid, request| map(&client, fid, request, 0).await.unwrap_err();
    let never_created = Fid::new(fid.f_seq, 0x1_0000, 0);
    assert_eq!(refused(never_created, request(0, 1, 1)).await, Errno::ENOENT);
    assert_eq!(refused(fid, request(0, 1, u32::MAX)).await, Errno::EINVAL);
    let short = vec![wire::nul_terminated(b"fiemap"), Bytes::new()];
    let short = client.call(OST_GET_INFO, short).await;
    assert!(matches!(short, Err(RpcError::Status(Errno::EPROTO))));
    node.set_nodemap_property("capabilities", "1");
    assert_eq!(refused(fid, request(0, 1, 1)).await, Errno::EACCES);
}
