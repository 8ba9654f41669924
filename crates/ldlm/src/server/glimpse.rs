//! Glimpse: a client requests an object's size without revoking the locks of its writers
//! (docs/protocol.md, "Locks (LDLM)").
//!
//! If the server can grant the read lock at once, it does. Otherwise it sends a glimpse AST to each
//! client that may have written beyond the size that the server knows, and replies with the
//! combined value block and without a lock.

use super::lvb::with_client_precision;
use super::{ExportState, LockServer};
use crate::action::{LockRequest, Placement, Refusal};
use crate::lock::Lock;
use crate::request::dlm_req;
use bytes::Bytes;
use cpt::JoinSet;
use rpc::{Reply, RpcError, ServerRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::format::bufs;
use wire::{Errno, HasTimes, LdlmReply, LdlmRequest, OstLvb, WireStruct};

impl LockServer {
    pub(super) async fn glimpse(
        &self,
        req: &ServerRequest,
        dlm: &LdlmRequest,
        lock_request: LockRequest,
    ) -> Result<Reply, Errno> {
        let res = lock_request.res;
        let shard = self.shard_of(&res, lock_request.policy.ty());
        let placement = self.with_shard(shard, |ns, now, out| {
            ns.enqueue(
                now,
                &LockRequest {
                    no_wait: true,
                    ..lock_request
                },
                out,
            )
        });
        match placement {
            Ok(Placement::Granted(id)) => {
                self.check_connected(&req.export, id)?;
                if let Some(lock) = self.lock_of(id) {
                    return self.lock_reply(&req.export, dlm, &lock, 0).await;
                }
            }
            Ok(_) | Err(Refusal::WouldBlock) => {}
            Err(_) => return Err(Errno::EINVAL),
        }
        let size = self.value_block(&res).await.map_or(0, |lvb| lvb.lvb_size);
        let writers = self.shards[shard].lock().ns.writers_beyond(&res, size);
        let mut replies = JoinSet::new();
        if let Some(server) = self.me.upgrade() {
            for lock in writers {
                let server = server.clone();
                replies.spawn(async move { server.send_glimpse(lock).await });
            }
        }
        let mut reports: Vec<OstLvb> = Vec::new();
        while let Some(reply) = replies.join_next().await {
            reports.extend(reply.ok().flatten());
        }
        // Read the object again: a writer that has just written back and cancelled reports nothing,
        // but the object has its data.
        let own = self.value_block(&res).await;
        let lvb = reports.into_iter().chain(own).reduce(|a, b| merge_lvbs(&a, &b));
        let bytes = lvb.map_or(Bytes::new(), |l| with_client_precision(&req.export, l.to_bytes()));
        Ok(Reply::new(vec![LdlmReply::default().to_bytes(), bytes])
            .with_status(wire::ELDLM_LOCK_ABORTED as i32))
    }

    async fn value_block(&self, res: &wire::LdlmResId) -> Option<OstLvb> {
        let bytes = self.lvb.fill(res).await?;
        OstLvb::from_bytes(&bytes).ok()
    }

    /// Sends a glimpse AST to the holder of a write lock. Passes the value block that the client
    /// reports to [`LvbOps::update`](super::LvbOps::update), and returns it. `None` if the client
    /// reports none, its export is gone, or the callback failed.
    async fn send_glimpse(self: Arc<Self>, lock: Lock) -> Option<OstLvb> {
        let export = self.export(lock.holder)?;
        let state = export.ext::<ExportState>();
        let _slot = state.slots.acquire().await.ok()?;
        self.counters.glimpse.fetch_add(1, Ordering::Relaxed);
        let req = dlm_req(0, 0, lock.desc(), [lock.cookie, 0].into_iter());
        match export
            .callback(wire::LDLM_GL_CALLBACK, vec![req], self.cancel_timeout(lock.id))
            .await
        {
            Ok(reply) => {
                let lvb = reply.get::<OstLvb>(bufs::GLIMPSE_LVB).ok()?;
                self.lvb
                    .update(
                        &lock.res,
                        Some(Bytes::copy_from_slice(reply.buf(bufs::GLIMPSE_LVB))),
                    )
                    .await;
                Some(lvb)
            }
            Err(RpcError::Status(Errno(status))) if status == wire::ELDLM_NO_LOCK_DATA as i32 => None,
            failed => {
                self.handle_ast_reply(&export, &lock, failed).await;
                None
            }
        }
    }
}

/// Combines two value blocks: the larger size, the larger number of blocks, the later times.
fn merge_lvbs(a: &OstLvb, b: &OstLvb) -> OstLvb {
    let mut merged = OstLvb {
        lvb_size: a.lvb_size.max(b.lvb_size),
        lvb_blocks: a.lvb_blocks.max(b.lvb_blocks),
        ..OstLvb::default()
    };
    merged.set_times(a.times().latest(b.times()));
    merged
}

#[cfg(test)]
mod tests {
    use super::merge_lvbs;
    use wire::OstLvb;

    #[test]
    fn merged_value_blocks_have_the_later_times_with_nanoseconds() {
        let a = OstLvb {
            lvb_size: 10,
            lvb_mtime: 5,
            lvb_mtime_ns: 900,
            ..OstLvb::default()
        };
        let b = OstLvb {
            lvb_size: 7,
            lvb_mtime: 6,
            lvb_mtime_ns: 100,
            lvb_blocks: 8,
            ..OstLvb::default()
        };
        let merged = merge_lvbs(&a, &b);
        assert_eq!(
            (
                merged.lvb_size,
                merged.lvb_blocks,
                merged.lvb_mtime,
                merged.lvb_mtime_ns
            ),
            (10, 8, 6, 100)
        );
    }
}
