//! The server side: handles the requests of both portals.
//!
//! Test requests queue on the CPU partition that received them; console requests, which are few, on
//! the first one. The server handles a bounded number of requests of each queue at once. While a
//! queue is full, LNet holds back the messages for its portal.

use crate::client::{Client, PING_MAGIC};
use crate::framework::{Framework, Outcome, status_reply};
use crate::inbox::Inbox;
use crate::pattern::{self, Check, PAGE};
use crate::srpc::Requester;
use lnet::{IncomingPut, Payload};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::Semaphore;
use wire::{
    Errno, LNET_MTU, LST_BRW_READ, LST_BRW_WRITE, LST_FEAT_BULK_LEN, LST_FEATS_MASK, LstSid, Nid,
    SRPC_MSG_VERSION, SRPC_RDMA_PORTAL, Selftest, SrpcBody, SrpcBrwReply, SrpcBrwReqst, SrpcPingReply,
    srpc_portal,
};

/// The console on this node, which handles JOIN requests.
pub trait JoinHandler: Send + Sync {
    /// Adds the node `from` to a group, if possible; returns the reply.
    fn join(&self, from: Nid, request: &Selftest) -> Selftest;
}

/// The request handlers of a node.
pub(crate) struct Server {
    pub(crate) srpc: Arc<Requester>,
    pub(crate) client: Arc<Client>,
    pub(crate) framework: Mutex<Framework>,
    pub(crate) console: Mutex<Option<Arc<dyn JoinHandler>>>,
}

impl Server {
    /// Handles the requests of a queue, `concurrency` at a time, until the task is aborted.
    pub(crate) async fn serve_all(self: Arc<Self>, inbox: Arc<Inbox>, queue: usize, concurrency: usize) {
        let slots = Arc::new(Semaphore::new(concurrency.max(1)));
        loop {
            for message in inbox.next(queue).await {
                // The semaphore is never closed.
                let Ok(slot) = slots.clone().acquire_owned().await else {
                    return;
                };
                let server = self.clone();
                tokio::spawn(async move {
                    server.serve(message).await;
                    drop(slot);
                });
            }
        }
    }

    /// Handles a request, and counts it as received; also as dropped if no reply was sent.
    async fn serve(&self, message: IncomingPut) {
        self.srpc.counters.received.fetch_add(1, Relaxed);
        if let Err(reason) = self.handle(message).await {
            self.srpc.counters.dropped.fetch_add(1, Relaxed);
            tracing::debug!("dropped an LNet selftest request: {reason}");
        }
    }

    /// Handles a request and sends the reply. An error is the reason to drop the request.
    async fn handle(&self, message: IncomingPut) -> Result<(), String> {
        let from = message.from;
        let request = Selftest::parse(&message.payload.into_bytes()).map_err(|e| format!("{from}: {e}"))?;
        let service = request
            .body
            .service()
            .ok_or_else(|| format!("{from}: the message is no request"))?;
        if message.match_bits != u64::from(service) || message.portal != srpc_portal(service) {
            return Err(format!(
                "{from}: portal {} and match bits {} are not those of service {service}",
                message.portal, message.match_bits
            ));
        }
        let rpyid = request.body.rpyid().unwrap_or(0);
        let reply = match &request.body {
            _ if service > wire::SRPC_FRAMEWORK_SERVICE_MAX_ID && request.version != SRPC_MSG_VERSION => {
                let status = status_reply(&request.body, Errno::EPROTO.0 as u32, LstSid::default());
                status
                    .map(|body| Selftest::new(LST_FEATS_MASK, body))
                    .ok_or("not a request")?
            }
            SrpcBody::PingReqst(ping) if ping.pnr_magic != PING_MAGIC => {
                return Err(format!("{from}: ping with wrong magic {:#x}", ping.pnr_magic));
            }
            SrpcBody::PingReqst(ping) => {
                let has_known_feats = request.feats & !LST_FEATS_MASK == 0;
                let reply = SrpcPingReply {
                    pnr_status: if has_known_feats {
                        0
                    } else {
                        Errno::EPROTO.0 as u32
                    },
                    pnr_magic: PING_MAGIC,
                    pnr_seq: ping.pnr_seq,
                };
                Selftest::new(request.feats & LST_FEATS_MASK, reply)
            }
            SrpcBody::BrwReqst(brw) => self.brw(from, request.feats, brw).await?,
            SrpcBody::JoinReqst(_) => {
                let console = self.console.lock().clone();
                console
                    .ok_or("this node has no console to join")?
                    .join(from, &request)
            }
            _ => self.framework(from, &request).await?,
        };
        let put = self
            .srpc
            .lnet
            .put(from, SRPC_RDMA_PORTAL, rpyid, 0, 0, reply.build().into(), false);
        put.await.map(drop).map_err(|e| e.to_string())
    }

    /// Handles a request for the framework.
    async fn framework(&self, from: Nid, request: &Selftest) -> Result<Selftest, String> {
        let counters = || (self.srpc.counters.to_wire(), self.srpc.lnet.counters());
        let outcome = self.framework.lock().handle(cpt::now(), request, counters);
        match (outcome, &request.body) {
            (Outcome::Reply(reply), _) => Ok(reply),
            (Outcome::Start(runs, reply), _) => {
                runs.iter().for_each(|run| self.client.start(run));
                Ok(reply)
            }
            (Outcome::Fetch(len), SrpcBody::TestReqst(test)) => {
                let list = self.fetch(from, test.tsr_bulkid, len).await?.into_bytes();
                Ok(self.framework.lock().add_client(cpt::now(), test, &list))
            }
            (Outcome::Fetch(_), _) => Err("nothing to fetch".to_owned()),
            (Outcome::Drop(reason), _) => Err(format!("{from}: the message {reason}")),
        }
    }

    /// Fetches the bulk data of a request.
    async fn fetch(&self, from: Nid, bulkid: u64, len: u32) -> Result<Payload, String> {
        if len > LNET_MTU {
            return Err(format!("{from}: bulk data of {len} bytes (limit {LNET_MTU})"));
        }
        let data = self.srpc.lnet.get(from, SRPC_RDMA_PORTAL, bulkid, 0, len).await;
        let data = data.map_err(|e| e.to_string())?;
        self.srpc.counters.bulk_get.fetch_add(data.len() as u64, Relaxed);
        Ok(data)
    }

    /// Handles a bulk request: sends or fetches the data.
    async fn brw(&self, from: Nid, feats: u32, request: &SrpcBrwReqst) -> Result<Selftest, String> {
        let supported = feats & LST_FEATS_MASK;
        let reply = |status: Option<Errno>| {
            let brw_status = status.map_or(0, |e| e.0 as u32);
            Selftest::new(supported, SrpcBrwReply { brw_status })
        };
        let len = request.brw_len;
        let valid_len = (feats & LST_FEAT_BULK_LEN != 0) || len.is_multiple_of(PAGE as u32);
        let check = match Check::from_wire(request.brw_flags) {
            Some(check) if [LST_BRW_READ, LST_BRW_WRITE].contains(&request.brw_rw) => check,
            _ => return Ok(reply(Some(Errno::EINVAL))),
        };
        if feats != supported {
            return Ok(reply(Some(Errno::EPROTO)));
        }
        if !valid_len || len == 0 || len > LNET_MTU {
            return Ok(reply(Some(Errno::EINVAL)));
        }
        if request.brw_rw == LST_BRW_READ {
            let data = self.client.bulk_data(len).into();
            let put = self
                .srpc
                .lnet
                .put(from, SRPC_RDMA_PORTAL, request.brw_bulkid, 0, 0, data, false);
            put.await.map_err(|e| e.to_string())?;
            self.srpc.counters.bulk_put.fetch_add(len.into(), Relaxed);
            return Ok(reply(None));
        }
        let data = self.fetch(from, request.brw_bulkid, len).await?;
        let intact = data.len() == len as usize && pattern::matches(&data, 0, check);
        Ok(reply((!intact).then_some(Errno::EBADMSG)))
    }
}
