//! Requests the target's super-sequence from MDT0, over a lightweight connection (docs/protocol.md,
//! "FLDB and FIDs").
//!
//! MDT0 may not run yet: the task retries until it has a super-sequence. Until then, requests of
//! MDTs for a sequence fail with `EINPROGRESS`.

use std::{sync::Arc, time::Duration};

use mgc::{FsConfig, TargetConf};
use rpc::{
    BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Ptlrpc, Reply, Request, RpcError,
};
use tokio::sync::watch;
use wire::format::bufs;
use wire::{
    Errno, LU_SEQ_RANGE_OST, LUSTRE_VERSION_CODE, LuSeqRange, Message, OBD_CONNECT_AT,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FID, OBD_CONNECT_FULL20, OBD_CONNECT_LIGHTWEIGHT,
    OBD_CONNECT_SKIP_ORPHAN, OBD_CONNECT_VERSION, ObdConnectData, OstIndex, SEQ_ALLOC_SUPER,
    SEQ_CONTROLLER_PORTAL, SEQ_QUERY, WireStruct,
};

use crate::sequence::Sequences;

/// The pause before the first retry, doubled for each further retry up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The owner of the connection, which holds no locks and caches nothing.
struct LwpOwner;

impl ImportOwner for LwpOwner {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, _event: ImportEvent) {}
}

/// Requests a super-sequence until the target has one. Gives up if the configuration has no MDT0
/// and the configuration's sender is dropped.
pub(crate) async fn fetch(
    rpc: Arc<Ptlrpc>,
    mut config: watch::Receiver<Arc<FsConfig>>,
    sequences: Arc<Sequences>,
    (fsname, index): (String, OstIndex),
) {
    let mut retry = RETRY_MIN;
    while !sequences.has_range() {
        let mdt0 = config
            .borrow_and_update()
            .mdts
            .iter()
            .find(|m| m.index == 0)
            .cloned();
        let Some(mdt0) = mdt0 else {
            if config.changed().await.is_err() {
                return;
            }
            continue;
        };
        match request_range(&rpc, &mdt0, &fsname, index).await {
            Ok(range) if range.lsr_start < range.lsr_end => match sequences.set_range(&range).await {
                Ok(()) => {
                    tracing::info!(
                        "{fsname}-OST{index:04x}: sequences {:#x}-{:#x}",
                        range.lsr_start,
                        range.lsr_end
                    );
                }
                Err(e) => tracing::error!("{fsname}-OST{index:04x}: cannot store the super-sequence: {e}"),
            },
            Ok(range) => tracing::warn!(
                "{}: replied with an empty super-sequence at {:#x}; retrying",
                mdt0.name,
                range.lsr_start
            ),
            Err(e) => tracing::debug!("{}: no super-sequence yet: {e}; retrying", mdt0.name),
        }
        if !sequences.has_range() {
            tokio::time::sleep(retry).await;
            retry = RETRY_MAX.min(2 * retry);
        }
    }
}

async fn request_range(
    rpc: &Arc<Ptlrpc>,
    mdt0: &TargetConf,
    fsname: &str,
    index: OstIndex,
) -> Result<LuSeqRange, RpcError> {
    let import = Import::new(
        rpc,
        ImportConfig {
            name: format!("{}-lwp-OST{index:04x}", mdt0.name),
            target_uuid: mdt0.uuid.clone(),
            client_uuid: format!("{fsname}-MDT0000-lwp-OST{index:04x}_UUID"),
            nids: mdt0.nids.clone(),
            kind: ImportKind::Lwp,
            connect: ObdConnectData {
                ocd_connect_flags: OBD_CONNECT_VERSION
                    | OBD_CONNECT_AT
                    | OBD_CONNECT_FID
                    | OBD_CONNECT_FULL20
                    | OBD_CONNECT_LIGHTWEIGHT
                    | OBD_CONNECT_SKIP_ORPHAN
                    | OBD_CONNECT_BULK_MBITS,
                ocd_version: LUSTRE_VERSION_CODE,
                ..ObdConnectData::default()
            },
            max_rpcs_in_flight: 1,
            owner: Arc::new(LwpOwner),
        },
    );
    let range = query(&import, index).await;
    import.disconnect().await;
    range
}

async fn query(import: &Import, index: OstIndex) -> Result<LuSeqRange, RpcError> {
    import.connect().await?;
    let want = LuSeqRange {
        lsr_index: index.0,
        lsr_flags: LU_SEQ_RANGE_OST,
        ..LuSeqRange::default()
    };
    let opc = SEQ_ALLOC_SUPER.to_le_bytes().to_vec().into();
    let request = Request {
        portal: Some(SEQ_CONTROLLER_PORTAL),
        no_resend: true,
        ..Request::new(SEQ_QUERY, vec![opc, want.to_bytes()])
    };
    let reply = import.call(request).await?;
    reply
        .get::<LuSeqRange>(bufs::QUERY_REPLY_RANGE)
        .map_err(RpcError::Status)
}
