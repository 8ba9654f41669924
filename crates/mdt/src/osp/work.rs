//! Working off what transactions queued for an OST: objects to remove or to give to a new owner.
//!
//! The queue is in the store, put there by the transaction itself, so that a crash forgets nothing. Work is sent once
//! its transaction is on disk (a file whose unlink a crash takes back keeps its data) and leaves the queue when the OST
//! has answered. Doing it twice does no harm.

use std::{sync::Arc, time::Duration};

use osd::Batch;
use rpc::{Request, RpcError};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use wire::{
    Errno, Fid, LdlmRequest, OBD_MD_FLGID, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLOBJCOUNT, OBD_MD_FLPROJID,
    OBD_MD_FLUID, OST_DESTROY, OST_REQUEST_PORTAL, OST_SETATTR, Obdo, OstBody, WireStruct,
};

use super::ost::Ost;
use crate::store::{Work, keys};

/// Entries of the queue looked at together.
const FETCH: usize = 512;
/// Requests in flight.
const PARALLEL: usize = 8;
/// Before work that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Works off the queue of one OST, for ever. The queue is in the order of transactions, so that what is done lies
/// behind and is not looked at again.
pub(super) async fn run(ost: Arc<Ost>) {
    let mut queued = ost.store.work();
    let mut committed = ost.store.transactions().watch_committed();
    let mut next = 0;
    loop {
        ost.connected().await;
        let newest = *queued.borrow_and_update();
        let upto = *committed.borrow_and_update();
        if next <= upto && (next == 0 || next <= newest) {
            match work_off(&ost, next, upto).await {
                Ok(()) => next = upto + 1,
                Err(e) => {
                    tracing::debug!("{}: work waits: {e}", ost.name());
                    sleep(RETRY).await;
                }
            }
            continue;
        }
        let changed = if next <= newest {
            committed.changed().await
        } else {
            queued.changed().await
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Does what the transactions `first..=last` queued.
async fn work_off(ost: &Arc<Ost>, first: u64, last: u64) -> Result<(), Errno> {
    let index = ost.store.index();
    let end = keys::work_from(ost.index(), last + 1);
    let mut from = keys::work_from(ost.index(), first);
    loop {
        let rows = index.scan(&from, &end, FETCH)?;
        let Some((seen, _)) = rows.last() else {
            return Ok(());
        };
        from = [seen, &b"\0"[..]].concat();
        let mut sent = JoinSet::new();
        let slots = Arc::new(Semaphore::new(PARALLEL));
        for (key, value) in rows {
            let work = Work::decode(&value)?;
            let object = keys::work_object(&key).ok_or(Errno::EIO)?;
            let (ost, slots) = (ost.clone(), slots.clone());
            sent.spawn(async move {
                let _slot = slots.acquire_owned().await;
                (key, send(&ost, object, work).await)
            });
        }
        let mut batch = Batch::new();
        let mut failed = None;
        while let Some(result) = sent.join_next().await {
            match result.map_err(|_| Errno::EIO)? {
                (key, Ok(())) => {
                    batch.delete(key);
                }
                (_, Err(e)) => failed = Some(e),
            }
        }
        index.apply(batch)?;
        if let Some(e) = failed {
            return Err(e);
        }
    }
}

async fn send(ost: &Ost, object: Fid, work: Work) -> Result<(), Errno> {
    let oa = Obdo {
        o_oi: object.into(),
        o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
        ..Obdo::default()
    };
    let mut req = match work {
        Work::Destroy => {
            let o_valid = OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLOBJCOUNT;
            let body = OstBody {
                oa: Obdo {
                    o_valid,
                    o_misc: 1,
                    ..oa
                },
            };
            Request::new(
                OST_DESTROY,
                vec![body.to_bytes(), LdlmRequest::default().to_bytes()],
            )
        }
        Work::Chown { uid, gid, projid } => {
            let o_valid = oa.o_valid | OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLPROJID;
            let oa = Obdo {
                o_valid,
                o_uid: uid,
                o_gid: gid,
                o_projid: projid,
                ..oa
            };
            Request::new(OST_SETATTR, vec![OstBody { oa }.to_bytes()])
        }
    };
    req.portal = Some(OST_REQUEST_PORTAL);
    match ost.call(req).await {
        Ok(_) => Ok(()),
        // There is no object: it was never written, or the work was done before.
        Err(RpcError::Status(Errno::ENOENT)) => Ok(()),
        // Work that the OST refuses is refused again and again: it must not hold up the rest for ever.
        Err(RpcError::Status(e))
            if !matches!(
                e,
                Errno::EINPROGRESS
                    | Errno::EAGAIN
                    | Errno::ENOMEM
                    | Errno::ENOSPC
                    | Errno::EIO
                    | Errno::EROFS
                    | Errno::ESHUTDOWN
            ) =>
        {
            tracing::error!("{}: {work:?} of {object} is refused: {e}", ost.name());
            Ok(())
        }
        Err(e) => Err(e.errno()),
    }
}
