//! The MDT as a target of the RPC layer: admits clients, dispatches each request to its handler,
//! and cleans up when a client's export ends.

use std::sync::Arc;

use params::Operations;
use rpc::{
    BoxFuture, ConnectRequest, EndReason, Export, Holdings, KeptReply, KnownClient, Mark, Reply, Role,
    ServerRequest, Target,
};
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Errno, FLD_LOOKUP, FLD_QUERY, LDLM_CANCEL, LDLM_CONVERT, LDLM_ENQUEUE, LuSeqRange, MDS_BATCH, MDS_CLOSE,
    MDS_GET_INFO, MDS_GET_ROOT, MDS_GETATTR, MDS_GETATTR_NAME, MDS_GETXATTR, MDS_HSM_STATE_GET,
    MDS_HSM_STATE_SET, MDS_READPAGE, MDS_REINT, MDS_RMFID, MDS_SET_INFO, MDS_STATFS, MDS_SWAP_LAYOUTS,
    MDS_SYNC, OST_FALLOCATE, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK, OST_SETATTR, OST_SYNC, OST_WRITE,
    OUT_UPDATE, ObdConnectData, SEQ_ALLOC_META, SEQ_ALLOC_SUPER, SEQ_QUERY, Transno, WireStruct,
};

use super::{HandlerResult, Mdt, reply};
use crate::{
    connect,
    dir_stats::directory_of,
    fid2path,
    stats::{self, Op},
};

impl Target for Mdt {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn admit(&self, req: &ConnectRequest) -> Result<Role, Errno> {
        let role = mgc::role_of(&self.uuid, req, |nid| self.config.borrow().has_target_at(nid))?;
        self.peers.check_claim(req, &self.config.borrow())?;
        self.nodemaps.admit(&self.uuid, req, role)
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        connect::negotiate(req, self.instance())
    }

    fn last_committed(&self) -> Transno {
        self.store.transactions().committed()
    }

    fn committed<'a>(&'a self, transno: Transno) -> BoxFuture<'a, ()> {
        let mut committed = self.store.transactions().watch_committed();
        Box::pin(async move {
            // Fails only when the store is dropped.
            let _ = committed.wait_for(|last| *last >= transno).await;
        })
    }

    fn replayable(&self) -> bool {
        true
    }

    fn operations(&self) -> Operations {
        stats::OPERATIONS
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            if !req.export.is_server() {
                self.updates.wait_until_ready().await;
            }
            self.wait_as_newcomer(req).await?;
            let (op, started) = (Op::of(req), Instant::now());
            let result = match self.reply_of_update(req) {
                Some(kept) => self.reconstruct_reply(req, kept).await,
                None => self.dispatch(req).await,
            };
            if let (Some(op), Ok(_)) = (op, &result) {
                let duration = started.elapsed();
                stats::record(req, op, duration);
                if self.dir_stats.is_recording()
                    && let Some(directory) = directory_of(req)
                {
                    self.dir_stats.add(req.cpt, directory, op, duration);
                }
            }
            result
        })
    }

    fn known_clients(&self) -> Vec<KnownClient> {
        self.take_known_clients()
    }

    fn remember_client<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(self.record_client(export))
    }

    fn record_holdings<'a>(
        &'a self,
        export: &'a Arc<Export>,
        mark: Mark,
        replaced: Vec<Mark>,
    ) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(self.record_holding(export, mark, replaced))
    }

    fn replace_holdings(&self, export: &Arc<Export>, before: &Holdings, now: &Holdings) {
        self.replace_records_of_holdings(export, before, now);
    }

    fn holdings_of(&self, export: &Arc<Export>) -> Option<Holdings> {
        Some(self.holdings_of_client(export))
    }

    fn forget_client(&self, client_uuid: &str) {
        self.remove_client_record(client_uuid);
    }

    fn reconstruct<'a>(
        &'a self,
        req: &'a mut ServerRequest,
        kept: KeptReply,
    ) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            self.updates.wait_until_ready().await;
            self.reconstruct_reply(req, kept).await
        })
    }

    fn recovery_aborted(&self) {
        self.updates.abort_wait();
    }

    fn recovered<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(self.finish_recovery())
    }

    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(self.end_export(export, why))
    }

    // Cleans up again: a request that was still running when the export ended may have taken locks
    // or opened files.
    fn last_request_done<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(self.drop_client_state(export))
    }
}

impl Mdt {
    /// Executes a request by its opcode.
    pub(crate) async fn dispatch(&self, req: &mut ServerRequest) -> HandlerResult {
        match req.opc {
            LDLM_ENQUEUE | LDLM_CANCEL | LDLM_CONVERT => match self.locks.server().handle(req).await {
                Some(result) => result,
                None => self.execute_intent(req).await,
            },
            MDS_REINT => self.reint(req).await,
            OUT_UPDATE => self.update(req).await,
            MDS_RMFID => self.rmfid(req).await,
            MDS_SWAP_LAYOUTS => self.swap_layouts(req).await,
            MDS_BATCH => self.execute_batch(req).await,
            MDS_CLOSE => self.close(req).await,
            MDS_GETATTR => self.getattr(req).await,
            MDS_GETATTR_NAME => self.getattr_name(req).await,
            MDS_GETXATTR => self.getxattr(req).await,
            MDS_READPAGE => self.readpage(req).await,
            MDS_GET_ROOT => self.get_root(req).await,
            MDS_SET_INFO => self.set_info(req),
            MDS_STATFS => self.statfs(req).await,
            MDS_SYNC => self.sync(req).await,
            MDS_GET_INFO => fid2path::answer(&self.store, req.buf(bufs::GET_INFO_KEY)).await,
            MDS_HSM_STATE_GET => self.hsm_state(req).await,
            MDS_HSM_STATE_SET => self.set_hsm_state(req).await,
            OST_READ => self.read_data(req).await,
            OST_WRITE => self.write_data(req).await,
            OST_PUNCH => self.punch_data(req).await,
            OST_FALLOCATE => self.allocate_data(req).await,
            OST_SETATTR => self.set_data_times(req).await,
            OST_GETATTR => self.data_attributes(req).await,
            OST_SEEK => self.seek_data(req).await,
            OST_SYNC => self.sync_data(req).await,
            FLD_QUERY => self.fld_query(req).await,
            SEQ_QUERY => self.seq_query(req).await,
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// Executes a message of another MDT. `EPERM` for other peers.
    async fn update(&self, req: &ServerRequest) -> HandlerResult {
        let sender = self.peers.index_of(&req.export).ok_or(Errno::EPERM)?;
        self.updates.handle(req, sender, self.is_recovering()).await
    }

    async fn fld_query(&self, req: &ServerRequest) -> HandlerResult {
        if query_operation(req)? != FLD_LOOKUP {
            return Err(Errno::EOPNOTSUPP);
        }
        let request: LuSeqRange = req.get(bufs::QUERY_RANGE)?;
        let range = match self.peers.index_of(&req.export) {
            // An MDT asks each of the others itself.
            Some(_) => self.sequences.lookup(&request)?,
            None => self.sequences.locate(&request).await?,
        };
        Ok(reply(1, [range.to_bytes()]))
    }

    async fn seq_query(&self, req: &ServerRequest) -> HandlerResult {
        let range = match query_operation(req)? {
            SEQ_ALLOC_META => {
                self.sequence_owners.check_limit(&req.export)?;
                let range = self.sequences.allocate_meta().await?;
                self.sequence_owners.claim(&req.export, range.lsr_start, || true);
                range
            }
            SEQ_ALLOC_SUPER if !req.export.is_server() => {
                lnet::warn_rate_limited!(peer = %req.peer, client = %req.export.client_uuid, "super-sequence refused: the peer is a client, not a server");
                return Err(Errno::EPERM);
            }
            SEQ_ALLOC_SUPER => {
                self.sequences
                    .allocate_super(&req.get(bufs::QUERY_RANGE)?)
                    .await?
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(reply(1, [range.to_bytes()]))
    }
}

/// The operation of an FLD or SEQ query, from the buffer `QUERY_OPC`.
fn query_operation(req: &ServerRequest) -> Result<u32, Errno> {
    let bytes = req.buf(bufs::QUERY_OPC).first_chunk::<4>().ok_or(Errno::EPROTO)?;
    Ok(u32::from_le_bytes(*bytes))
}
